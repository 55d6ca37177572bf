"""Copies between a device and the host, and devices that are lost."""

import contextlib
import functools
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from gradwire.errors import DeviceError

_STREAMS = ("Event", "Stream", "current_stream", "device", "stream")
_NO_PINS = ("out of memory", "memory allocation", "pin memory", "pinned memory", "not supported")
"""Words of errors that mean there is no pinned memory, or no more of it, and no lost device."""


def is_lost(device: torch.device) -> bool:
    """Tell, without waiting, whether a device fails every call.

    After an error of a kernel, or of the device itself, CUDA fails every call of the process with
    the same error. After other errors, such as out of memory, it continues.
    """
    module: Any = getattr(torch, device.type, None)
    if device.type == "cpu" or not hasattr(module, "current_stream"):
        return False
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        return False  # where nothing may be asked
    try:
        module.current_stream(device).query()
    except RuntimeError:
        return True
    return False


@contextlib.contextmanager
def naming_loss(device: torch.device) -> Iterator[None]:
    """Replace the error of an operation by a DeviceError if the device is lost."""
    try:
        yield
    except DeviceError:
        raise
    except RuntimeError as error:
        if is_lost(device):
            raise lost(device, error) from error
        raise


def lost(device: torch.device, error: object) -> DeviceError:
    """Return the error of a device that is lost."""
    said = str(error).partition("\n")[0]
    return DeviceError(
        f"{device} is lost to this process ({said}): nothing can be copied from it or to it "
        "any more. End the process, and restart from a checkpoint"
    )


class Staging:
    """Copies tensors of one device to the host, and back.

    Copies to and from the host have a stream each, so that averages need not wait for gradients
    that are not computed yet. No method makes the caller's stream wait; `wait`, `fetch` and `read`
    make the thread that calls them wait, for a device without streams as a whole.

    Pinned memory is not kept here: torch caches freed memory and reuses it once its copies are
    done. Without pinned memory, a warning is given once, and copies are synchronous.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        module: Any = None if device.type == "cpu" else getattr(torch, device.type, None)
        self._module = module
        self._streams = all(hasattr(module, name) for name in _STREAMS)
        self._pins = self._streams
        if self._streams:
            # Before the backward pass, which waits for what goes through these.
            first = {"priority": -1} if hasattr(module.Stream, "priority_range") else {}
            self._down, self._up = (module.Stream(device=device, **first) for _ in range(2))

    def mark(self) -> Any:
        """Return an event after all work queued on the caller's stream so far."""
        if not self._streams:
            return None
        # The thread that waits sleeps, where a device has that: gradients may be long in coming.
        options = {"blocking": True} if self.device.type == "cuda" else {}
        event = self._module.Event(**options)
        event.record(self._module.current_stream(self.device))
        return event

    def wait(self, after: Any) -> None:
        """Make this thread wait for an event; without streams, for the whole device."""
        if self._streams:
            after.synchronize()
        elif hasattr(self._module, "synchronize"):
            self._module.synchronize()

    def empty(self, shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
        """Return memory on the host, pinned if possible."""
        if self._pins:
            try:
                return torch.empty(shape, dtype=dtype, device="cpu", pin_memory=True)
            except RuntimeError as error:
                unsupported = isinstance(error, NotImplementedError)
                if not (unsupported or any(word in str(error).lower() for word in _NO_PINS)):
                    raise
                self._pins = False
                warnings.warn(
                    f"there is no pinned memory for copies to and from {self.device}, so they "
                    f"block threads: {error}",
                    RuntimeWarning,
                    stacklevel=2,
                )
        return torch.empty(shape, dtype=dtype, device="cpu")

    def fetch(self, tensor: torch.Tensor, after: Any) -> torch.Tensor:
        """Copy a tensor to the host after an event, and wait for the copy."""
        with naming_loss(self.device), self.reading(after):
            return self.read(tensor)

    def read(self, tensor: torch.Tensor) -> torch.Tensor:
        """Copy a tensor to the host in the order of the current stream; wait for this copy only."""
        return self.read_all([tensor])[0]

    def read_all(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Read several tensors as `read` does, with a single wait."""
        with naming_loss(self.device):
            copies = [self._copy(tensor) for tensor in tensors]
            if self._streams:
                self.mark().synchronize()
            return copies

    def moment(self) -> Any:
        """Return a timing event at this point of the current stream, for `seconds`."""
        if self.device.type != "cuda":
            return time.perf_counter()
        event = self._module.Event(enable_timing=True)
        event.record(self._module.current_stream(self.device))
        return event

    def seconds(self, begin: Any, end: Any) -> float:
        """Return the seconds between two moments that have passed."""
        if self.device.type != "cuda":
            return float(end - begin)
        return float(begin.elapsed_time(end)) * 1e-3

    def upload(self, values: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Copy values of the host to the device, in the order of the current stream."""
        host = self.empty(values.shape, dtype or values.dtype).copy_(values)
        with naming_loss(self.device):
            return host.to(self.device, non_blocking=self._asynchronous(host))

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.layout != torch.strided:
            return tensor.to("cpu", copy=True)
        host = self.empty(tensor.shape, tensor.dtype)
        return host.copy_(tensor, non_blocking=self._asynchronous(host))

    def _asynchronous(self, host: torch.Tensor) -> bool:
        """Tell whether copies may outlast a call, which needs pinned memory."""
        return self._pins and host.is_pinned()

    def reading(self, after: Any) -> AbstractContextManager[None]:
        """Run this block on the stream of copies to the host, after an event."""
        if self._streams:
            return self._on(self._down, after)
        self.wait(after)  # the copies of this thread need not follow the work of another
        return nullcontext()

    def writing(self, after: Any = None) -> AbstractContextManager[None]:
        """Run this block on the stream of copies to the device, after an event if given.

        A future that is resolved within the block is ordered after the copies.
        """
        return self._on(self._up, after) if self._streams else nullcontext()

    @contextlib.contextmanager
    def _on(self, stream: Any, after: Any) -> Iterator[None]:
        # In the device's own block: to leave the other one for a stream of the thread's first
        # device would take memory on that one.
        with self._module.device(self.device), self._module.stream(stream):
            if after is not None:
                stream.wait_event(after)
            yield

    def keep(self, tensor: torch.Tensor) -> None:
        """Prevent reuse of a tensor's memory before the work queued on both streams is done."""
        if not self._streams:
            return
        sparse = tensor.layout != torch.strided
        for part in (tensor._indices(), tensor._values()) if sparse else (tensor,):
            part.record_stream(self._down)
            part.record_stream(self._up)

    def follow(self, mark: Any) -> None:
        """Let the current stream wait for an event of `mark`."""
        if self._streams:
            self._module.current_stream(self.device).wait_event(mark)

    def write(self, tensor: torch.Tensor, host: torch.Tensor) -> None:
        """Copy from memory of `empty`, on the current stream."""
        with naming_loss(self.device):
            tensor.copy_(host, non_blocking=self._asynchronous(host))

    def future(self) -> "torch.futures.Future[torch.Tensor]":
        """Return a future for which streams of the device wait, not only threads."""
        if self.device.type == "cpu":
            return torch.futures.Future()
        return torch.futures.Future(devices=[self.device])


@functools.cache
def staging(device: torch.device) -> Staging:
    """Return the `Staging` of a device, which is created once."""
    return Staging(device)
