"""The transport of Horovod: collectives with names, negotiated by its background thread."""

import contextlib
import pickle
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Any

import torch

from gradwire.torch.errors import ExchangeError
from gradwire.torch.transport.interface import NO_CARRIERS, Channel, Work

try:
    import horovod.torch as hvd
    from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt
    from horovod.torch import mpi_ops
except ImportError as error:
    raise ImportError(
        "gradwire.torch.horovod needs Horovod 0.28 built for this PyTorch: its last release builds "
        f"against today's torch only with the changes that docs/horovod.md describes ({error})"
    ) from error

__all__ = [
    "HorovodChannel",
    "HorovodTransport",
    "HostsUpdated",
    "InternalError",
    "check_initialized",
    "library",
]

library: Any = hvd
"""Horovod for torch, which has no types."""

InternalError: Any = HorovodInternalError
"""What Horovod raises when it has lost a rank, or was shut down."""

HostsUpdated: Any = HostsUpdatedInterrupt
"""What Horovod raises when ranks are to join or leave."""

_NAMES = 64
"""Names of a channel, used in turn: new ones would fill Horovod's response cache."""
_LENGTH = struct.Struct("<Q")
_SHORT, _LONG = 2e-4, 1e-3  # seconds between looks at a collective
_BRIEF = 50


def check_initialized() -> None:
    """Raise a ValueError unless ``hvd.init()`` was called."""
    if not hvd.is_initialized():
        raise ValueError("Horovod is not initialized: call hvd.init() first")


class _Numbers:
    """Numbers of channels, which all ranks count alike since Horovod was initialized last."""

    def __init__(self) -> None:
        self._since: object = None
        self._next: dict[tuple[int, ...], int] = {}

    def take(self, process_set: tuple[int, ...]) -> int:
        if self._since is not _initialization():
            self._since, self._next = _initialization(), {}
        number = self._next.get(process_set, 0)
        self._next[process_set] = number + 1
        return number


_numbers = _Numbers()


def _initialization() -> object:
    """Return an object that Horovod replaces whenever it is initialized: its map of handles."""
    return mpi_ops._handle_map


class _Pending:
    """A collective of Horovod in progress.

    Parameters
    ----------
    channel : HorovodChannel
    handle : int
    finish : callable
        Takes what Horovod returns, once.
    """

    def __init__(
        self, channel: "HorovodChannel", handle: int, finish: Callable[[torch.Tensor], None]
    ) -> None:
        self._channel = channel
        self._handle = handle
        self._finish = finish
        self._lock = threading.Lock()
        self._done = False
        self._failure: RuntimeError | None = None

    def wait(self) -> None:
        """Wait until it is done.

        Raises
        ------
        RuntimeError
            It failed, or took longer than the channel's timeout.
        """
        with self._lock:
            if not self._done:
                self._await()
                self._done, self._finish = True, _nothing  # what it holds may go
        if self._failure is not None:
            raise self._failure

    def _await(self) -> None:
        timeout = self._channel.timeout
        deadline = None if timeout is None else time.monotonic() + timeout.total_seconds()
        try:
            looks = 0
            while not hvd.poll(self._handle):
                if deadline is not None and time.monotonic() > deadline:
                    raise RuntimeError(f"another rank did not take part within {timeout}")
                looks += 1
                time.sleep(_SHORT if looks < _BRIEF else _LONG)
            self._finish(hvd.synchronize(self._handle))
        except RuntimeError as error:
            self._failure = error
        except ValueError as error:  # what poll() raises for a handle of before hvd.shutdown()
            self._failure = RuntimeError(f"Horovod was shut down in between ({error})")


class _All:
    """Several collectives, and what is to be done after all of them."""

    def __init__(self, works: Iterable[Work], finish: Callable[[], None]) -> None:
        self._works = list(works)
        self._finish: Callable[[], None] | None = finish

    def wait(self) -> None:
        for work in self._works:
            work.wait()
        finish, self._finish = self._finish, None
        if finish is not None:
            finish()


class HorovodChannel:
    """Collectives of one process set, under names that nothing else has.

    Horovod matches collectives by name, and refuses a name that is in progress. All ranks start the
    same ones in the same order, so the names of a channel are used in turn.

    Parameters
    ----------
    process_set : horovod.ProcessSet
    timeout : datetime.timedelta, optional
        How long to wait for other ranks; for ever by default, as Horovod does.
    """

    def __init__(self, process_set: Any, timeout: timedelta | None) -> None:
        self._set = process_set
        self.timeout = timeout
        self.rank = int(process_set.rank())
        self.size = int(process_set.size())
        self._initialization = _initialization()
        self._number = _numbers.take(tuple(process_set.ranks))
        self._started = 0
        self._latest: deque[_Pending] = deque(maxlen=_NAMES)

    @property
    def is_open(self) -> bool:
        """Whether Horovod is still initialized, and was not shut down in between."""
        return bool(hvd.is_initialized()) and self._initialization is _initialization()

    def all_gather(self, out: torch.Tensor, mine: torch.Tensor) -> Work:
        """Start to fill ``out`` with ``mine`` of all ranks, in rank order."""

        def finish(found: torch.Tensor) -> None:
            target = _bytes(out)
            if found.numel() != target.numel():
                raise RuntimeError(
                    f"the ranks sent {found.numel()} bytes, expected {target.numel()}: they did "
                    "not start the same collectives"
                )
            target.copy_(found)

        return self._gather(_bytes(mine), finish)

    def all_reduce(self, tensor: torch.Tensor) -> Work:
        """Start to replace a tensor by its sum over all ranks; bfloat16 is summed in float32."""
        if tensor.layout != torch.strided:
            return self._sum_sparse(tensor)
        bf16 = tensor.dtype == torch.bfloat16
        wire = tensor.float() if bf16 else tensor
        name = self._name()
        with _starting():
            handle = hvd.allreduce_async_(wire, name=name, op=hvd.Sum, process_set=self._set)
        return self._follow(handle, tensor.copy_ if bf16 else _nothing)

    def broadcast(self, tensor: torch.Tensor, source: int) -> Work:
        """Start to replace a tensor by that of one rank."""
        root, name = self._set.ranks[source], self._name()
        with _starting():
            handle = hvd.broadcast_async_(_bytes(tensor), root, name=name, process_set=self._set)
        return self._follow(handle, _nothing)

    def gather(self, mine: torch.Tensor, to: int) -> list[torch.Tensor]:
        """Return the tensors of all ranks on one of them; an empty list on the others."""
        every = mine.new_empty(self.size * mine.numel())
        self.all_gather(every, mine.flatten()).wait()
        return [each.view_as(mine) for each in every.chunk(self.size)] if self.rank == to else []

    def all_gather_object(self, mine: Any) -> list[Any]:
        """Return plain objects of all ranks."""
        data = pickle.dumps(mine)
        message = torch.frombuffer(bytearray(_LENGTH.pack(len(data)) + data), dtype=torch.uint8)
        every: list[Any] = []

        def finish(found: torch.Tensor) -> None:
            rest = found.numpy().tobytes()
            while rest:
                (length,) = _LENGTH.unpack_from(rest)
                end = _LENGTH.size + length
                every.append(pickle.loads(rest[_LENGTH.size : end]))
                rest = rest[end:]

        self._gather(message, finish).wait()
        return every

    def broadcast_object(self, value: Any, source: int) -> Any:
        """Return the plain object of one rank."""
        return self.all_gather_object(value if self.rank == source else None)[source]

    def set_timeout(self, timeout: timedelta) -> None:
        """Wait no longer than this from now on."""
        self.timeout = timeout

    def _gather(self, mine: torch.Tensor, finish: Callable[[torch.Tensor], None]) -> Work:
        """Start to concatenate bytes of all ranks, of any number."""
        name = self._name()
        with _starting():
            handle = hvd.allgather_async(mine, name=name, process_set=self._set)
        return self._follow(handle, finish)

    def _sum_sparse(self, tensor: torch.Tensor) -> Work:
        """Gather the entries of all ranks, and add up what has the same indices, in rank order."""
        part = tensor if tensor.is_coalesced() else tensor.coalesce()
        indices = part.indices().t().contiguous()  # an entry after another
        values = part.values().contiguous()
        found: list[torch.Tensor] = []
        works = [self._gather(_bytes(each.view(-1)), found.append) for each in (indices, values)]

        def finish() -> None:
            places, numbers = found
            every = torch.sparse_coo_tensor(
                places.view(indices.dtype).view(-1, indices.shape[1]).t(),
                numbers.view(values.dtype).view(-1, *values.shape[1:]),
                tensor.shape,
                check_invariants=False,
            )
            total = every.coalesce()
            # In place: the caller has this tensor.
            tensor.zero_()
            tensor.add_(total.to(tensor.device))

        return _All(works, finish)

    def _name(self) -> str:
        if not self.is_open:
            raise ExchangeError(
                "hvd.init() or hvd.shutdown() was called since this optimizer was made: make it "
                "again"
            )
        if len(self._latest) == _NAMES:  # the name of the oldest one is used again
            self._latest[0].wait()
        name = f"gradwire.{self._number}.{self._started % _NAMES}"
        self._started += 1
        return name

    def _follow(self, handle: int, finish: Callable[[torch.Tensor], Any]) -> _Pending:
        work = _Pending(self, handle, finish)
        self._latest.append(work)
        return work


class HorovodTransport:
    """Makes channels of one process set.

    Parameters
    ----------
    process_set : horovod.ProcessSet
    timeout : datetime.timedelta, optional
        How long to wait for other ranks; for ever by default, as Horovod does.
    """

    def __init__(self, process_set: Any, timeout: timedelta | None) -> None:
        self._set = process_set
        self._timeout = timeout

    def carriers(self, tensors: Iterable[torch.Tensor]) -> dict[str, str]:
        """Return what moves frames: Horovod, from the memory of the host."""
        del tensors
        return {"cpu": "horovod"}

    def make(self, carriers: Mapping[str, str] = NO_CARRIERS) -> Channel:
        """Make a channel. It costs nothing: a channel is a name."""
        del carriers
        return HorovodChannel(self._set, self._timeout)

    def connect(
        self, channel: Channel, carriers: Mapping[str, str], tensors: Iterable[torch.Tensor]
    ) -> None:
        """Return: Horovod has connected the ranks."""

    def leave(self) -> None:
        """Return: there is nothing to close."""


@contextlib.contextmanager
def _starting() -> Iterator[None]:
    """Say what it means that Horovod starts no collective any more."""
    try:
        yield
    except HorovodInternalError as error:
        raise ExchangeError(
            "Horovod exchanges nothing any more: another rank has stopped or failed, or Horovod "
            f"was shut down ({str(error).strip()})"
        ) from error


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return the memory of a tensor: Horovod does not know every dtype, bfloat16 for one."""
    return tensor.contiguous().view(-1).view(torch.uint8)


def _nothing(found: torch.Tensor) -> None:
    """Return: it was done in place."""
