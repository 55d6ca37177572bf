"""Copies between a device and the host: pinned, on streams of their own, where there are any."""

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import torch

__all__ = ["Staging", "staging"]

_STREAMS = ("Event", "Stream", "current_stream", "stream")


class Staging:
    """Copies tensors of one device to the host, and back.

    Copies down and up have a stream each, so that averages need not wait for gradients that are
    still to be computed. No method makes the caller's stream wait; `wait` and `fetch` alone make
    the thread that calls them wait, for a device without streams as a whole.

    Pinned memory is not kept here: torch keeps what is freed, and gives it out again when the
    copies are done that it was used for.

    Parameters
    ----------
    device : torch.device
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        module: Any = None if device.type == "cpu" else getattr(torch, device.type, None)
        self._module = module
        self._streams = all(hasattr(module, name) for name in _STREAMS)
        self._pins = self._streams
        if self._streams:
            self._down, self._up = (module.Stream(device=device) for _ in range(2))

    def mark(self) -> Any:
        """Return an event: all that the caller's stream was given until now."""
        if not self._streams:
            return None
        # The thread that waits sleeps, where a device has that: gradients may be long in coming.
        options = {"blocking": True} if self.device.type == "cuda" else {}
        event = self._module.Event(**options)
        event.record(self._module.current_stream(self.device))
        return event

    def wait(self, after: Any) -> None:
        """Make this thread wait for an event; without streams, for all that the device does."""
        if self._streams:
            after.synchronize()
        elif hasattr(self._module, "synchronize"):
            self._module.synchronize()

    def empty(self, shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
        """Return memory on the host, pinned if possible."""
        if self._pins:
            try:
                return torch.empty(shape, dtype=dtype, device="cpu", pin_memory=True)
            except RuntimeError:  # not every device has any
                self._pins = False
        return torch.empty(shape, dtype=dtype, device="cpu")

    def fetch(self, tensor: torch.Tensor, after: Any) -> torch.Tensor:
        """Return a copy on the host of what a tensor holds after an event; wait for it."""
        if not self._streams:
            self.wait(after)  # the copies of this thread need not follow the work of another
            return self._copy(tensor)
        with self._module.stream(self._down):
            self._down.wait_event(after)
            host = self._copy(tensor)
            done = self.mark()
        done.synchronize()
        return host

    def read(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy on the host in the order of the current stream; wait for that one alone."""
        host = self._copy(tensor)
        if self._streams:
            self.mark().synchronize()
        return host

    def upload(self, values: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Return a copy on the device of values of the host, in the order of the current stream."""
        host = self.empty(values.shape, dtype or values.dtype).copy_(values)
        return host.to(self.device, non_blocking=self._asynchronous(host))

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.layout != torch.strided:
            return tensor.to("cpu", copy=True)
        host = self.empty(tensor.shape, tensor.dtype)
        return host.copy_(tensor, non_blocking=self._asynchronous(host))

    def _asynchronous(self, host: torch.Tensor) -> bool:
        """Tell whether copies may go on while the thread does, and memory be given back meanwhile.

        Memory that is not pinned may be freed before a device has read it.
        """
        return self._pins and host.is_pinned()

    @contextlib.contextmanager
    def reading(self, after: Any) -> Iterator[None]:
        """Give what is done in this block to the stream of copies down, after an event."""
        if not self._streams:
            self.wait(after)
            yield
            return
        with self._module.stream(self._down):
            self._down.wait_event(after)
            yield

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Give what is done in this block to the stream of copies up, after nothing of another."""
        if not self._streams:
            yield
            return
        with self._module.stream(self._up):
            yield

    @contextlib.contextmanager
    def writing(self, after: Any) -> Iterator[None]:
        """Give what is done in this block to the stream of copies up, after an event.

        A future that is resolved within the block is ordered after the copies.
        """
        if not self._streams:
            yield
            return
        with self._module.stream(self._up):
            self._up.wait_event(after)
            yield

    def write(self, tensor: torch.Tensor, host: torch.Tensor) -> None:
        """Copy from memory that `empty` made, on the current stream."""
        tensor.copy_(host, non_blocking=self._asynchronous(host))

    def future(self) -> "torch.futures.Future[torch.Tensor]":
        """Return a future that streams of the device wait for, not threads alone."""
        if self.device.type == "cpu":
            return torch.futures.Future()
        return torch.futures.Future(devices=[self.device])


@functools.cache
def staging(device: torch.device) -> Staging:
    """Return what copies to and from a device; its streams are made once."""
    return Staging(device)
