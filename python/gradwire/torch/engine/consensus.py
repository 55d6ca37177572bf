"""How the ranks agree: on options, on devices, and that all called the same operation."""

import contextlib
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Any, TypeVar

import numpy as np
import torch

from gradwire.errors import ExtensionError, GradwireError
from gradwire.torch import backends
from gradwire.torch.errors import ExchangeError, kind_of
from gradwire.torch.transport import Channel

T = TypeVar("T")


def agree(channel: Channel, act: str, mine: dict[str, Any]) -> None:
    """Compare facts across the ranks: an undetected difference would cause a hang or garbage.

    If two ranks differ in a fact, every rank raises a ValueError. ``act`` is the operation in the
    past tense, for the message.
    """
    every = channel.all_gather_object(mine)
    for rank, theirs in enumerate(every):
        for what in {**every[0], **theirs}:
            if theirs.get(what) != every[0].get(what):
                raise ValueError(
                    f"rank {rank} and rank 0 {act} with different {what}: "
                    f"{theirs.get(what)!r} and {every[0].get(what)!r}"
                )


def checksum(value: object) -> int:
    """Return a checksum that is the same in every process for equal values."""
    return zlib.crc32(repr(value).encode())


_NBYTES = 64
_LAST = timedelta(hours=1)  # for a last act of ranks that have all come to it


class ControlChannel:
    """A channel separate from that of the buckets, so that messages and buckets never mix.

    Gloo aborts the process if two ranks start collectives of different sizes. So each operation
    (act) begins with an exchange of its name in a record of fixed length, and ranks in different
    operations read each other's names. If a rank does not arrive at all, the others give up after
    the timeout. The channel has no other user.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self.size = channel.size
        self._lost: str | None = None
        self._kind: type[ExchangeError] = ExchangeError
        self._pid = os.getpid()
        # Kept until the channel is closed: see all_gather.py.
        self._mine = torch.zeros(_NBYTES, dtype=torch.uint8, device="cpu")
        self._every = self._mine.new_zeros(_NBYTES * self.size)

    @contextlib.contextmanager
    def act(self, name: str) -> Iterator[Channel]:
        """Run a block on all ranks together, with a channel in which nothing else is in progress.

        The block may raise a ValueError if it does so on every rank. Any other exception closes
        the channel, because other ranks may be waiting in it. Raises an ExchangeError if another
        rank called something else, or did not call within the timeout.
        """
        self._check_open(name)
        met = False
        try:
            self._meet(name)
            met = True
            yield self._channel
        except BaseException as error:  # also Ctrl-C: other ranks may be in the middle of the act
            if isinstance(error, ValueError if met else ExchangeError):
                raise
            self._lost = f"{name}: {type(error).__name__}: {error}"
            if isinstance(error, RuntimeError):
                self._lost, self._kind = f"{name}: {error}", kind_of(error)
                if not isinstance(error, GradwireError):
                    text = f"{name} failed while the ranks communicated ({error})"
                    raise ExchangeError(text) from error
            raise

    def compare(self, name: str, message: str) -> list[str]:
        """Meet the other ranks in an act, and return the strings that each rank passed.

        Both strings together are at most 62 ASCII characters.
        """
        self._check_open(name)
        return self._meet(name, message)

    def leave(
        self, name: str, timeout: timedelta, last: Callable[[Channel], None] | None = None
    ) -> bool:
        """Meet the other ranks in the last act, if given; return whether all arrived in time.

        Raises an ExchangeError if a rank was lost during the act.
        """
        forked = os.getpid() != self._pid  # the connections belong to the parent process
        if self._lost is not None or forked or not self._channel.is_open:
            return False
        self._channel.set_timeout(timeout)
        try:
            self._meet(name if last is None else f"{name} with moments")
        except ExchangeError:
            return False
        self._lost = name
        if last is not None:
            self._channel.set_timeout(_LAST)
            try:
                last(self._channel)
            except RuntimeError as error:
                text = f"{name} failed while the ranks communicated ({error})"
                raise kind_of(error)(text) from error
        return True

    def _check_open(self, name: str) -> None:
        if self._lost is not None:
            raise self._kind(f"{name}: an earlier call closed the control channel: {self._lost}")
        if os.getpid() != self._pid:
            raise ExchangeError(f"{name}: this process was forked after attach(): not a rank")

    def _meet(self, name: str, message: str = "") -> list[str]:
        mine = self._mine.numpy()
        mine[:] = 0
        name = name.encode()[:_NBYTES].decode(errors="ignore")  # as the others read it
        data = f"{name}\0{message}".encode()[:_NBYTES]
        mine[: len(data)] = np.frombuffer(data, np.uint8)
        try:
            self._channel.all_gather(self._every, self._mine).wait()
        except RuntimeError as error:
            self._lost, self._kind = f"{name}: {error}", kind_of(error)
            raise self._kind(
                f"another rank did not call {name}: it has stopped, failed, or called something "
                f"else ({str(error).strip()})",
                getattr(error, "rank", None),
            ) from error
        rows = self._every.view(self.size, _NBYTES).numpy()
        every = []
        for rank, row in enumerate(rows):
            theirs, _, then = row.tobytes().decode(errors="replace").partition("\0")
            if theirs != name:
                raise ExchangeError(f"rank {rank} called {theirs}, this rank {name}", rank)
            every.append(then.rstrip("\0"))
        return every


_with_kernels: set[torch.device] = set()
"""Devices on which ranks have agreed on kernels, which stay in use: states are there."""


class Devices:
    """The devices of these tensors; tests and loads their kernels before any collective.

    A rank whose device hangs still reaches `agree`, so no other rank waits for it in vain.
    """

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        self._found: dict[torch.device, backends.BackendInUse] = {}
        self._error: Exception | None = None
        try:
            tensors_by_device = {tensor.device: tensor for tensor in tensors}
            for device in tensors_by_device:
                self._found[device] = backends.in_use(device)
            backends.preload(tensors_by_device.values())
        except Exception as error:
            self._error = error

    def agree(self, channel: Channel) -> None:
        """Encode on the host on all ranks if any rank must. A collective.

        So all ranks transfer frames in the same way. Raises an ExtensionError on all ranks if a
        device of one hangs.
        """
        reasons = {
            device.type: way.reason for device, way in self._found.items() if way.name == "host"
        }
        every = channel.all_gather_object((reasons, self._error and str(self._error)))
        if self._error is not None:
            raise self._error
        for rank, (_, error) in enumerate(every):
            if error is not None:
                raise ExtensionError(f"rank {rank} cannot attach: {error}")
        for device, way in self._found.items():
            why = [
                f"as on rank {rank}, where {theirs[device.type]}"
                for rank, (theirs, _) in enumerate(every)
                if device.type in theirs
            ]
            if way.name == "cuda" and not why:
                _with_kernels.add(device)
            elif way.name == "cuda" and device not in _with_kernels:
                backends.use_host(device, why[0])

    def warn_of_copies(self, device_backends: Mapping[str, str]) -> None:
        """Warn once per device that its gradients are copied to the host.

        Device types that have a backend of their own are excluded.
        """
        for device, way in self._found.items():
            if device.type in ("cpu", *device_backends):
                continue
            text = (
                f"gradients on {device} are encoded on the CPU in every step: {way.reason}. The "
                "kernels need an NVIDIA GPU, torch 2.11, the extension that "
                "gradwire.torch.build_cuda() compiles, and a driver for its CUDA version. Without "
                "these, this is expected: averages are the same, but steps take longer"
            )
            if way.name == "cuda":
                text = (
                    f"frames of gradients on {device} are copied to the CPU and sent over Gloo: "
                    f"the model's process group has no backend for {device.type} that sends from "
                    "device memory, such as NCCL"
                )
            backends.warn_of_host(device, text)
