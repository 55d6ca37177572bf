"""Tensors on a device without a backend of its own: the host encodes copies of them.

It needs nothing of a device but copies, so it takes any: CUDA without the extension, ROCm, XPU,
MPS. What crosses to the host is every gradient, and what crosses back are averages: correct
everywhere, and slower than a backend that works on the device.

The calls for one tensor wait for the device, because a frame is bytes on the host, in the thread
that asks. States are the core's.
"""

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from typing_extensions import override

from gradwire._codec import Codec
from gradwire.frame import Frame
from gradwire.state import State
from gradwire.torch.backends import cpu
from gradwire.torch.backends.cpu import BYTES, INPUTS, OUTPUTS, FrameBytes, check, check_out

name = "host"
waits = True
can_stay_on_device = False
init_state, rollback = cpu.init_state, cpu.rollback

_STREAMS = ("Event", "Stream", "current_stream", "device", "stream")
_NO_PINS = ("out of memory", "memory allocation", "pin memory", "pinned memory", "not supported")
"""Words of errors that mean there is no pinned memory, or no more of it, and no lost device."""

# Copies -------------------------------------------------------------------------------------------


class Staging:
    """Copies tensors of one device to the host, and back.

    Copies down and up have a stream each, so that averages need not wait for gradients that are
    still to be computed. No method makes the caller's stream wait; `wait`, `fetch` and `read` make
    the thread that calls them wait, for a device without streams as a whole.

    Pinned memory is not kept here: torch keeps what is freed, and gives it out again when the
    copies are done that it was used for. Where there is none, a warning says so once, and copies
    wait.
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
            except RuntimeError as error:
                unsupported = isinstance(error, NotImplementedError)
                if not (unsupported or any(word in str(error).lower() for word in _NO_PINS)):
                    raise
                self._pins = False
                warnings.warn(
                    f"there is no pinned memory for copies from and to {self.device}, which "
                    f"therefore make threads wait: {error}",
                    RuntimeWarning,
                    stacklevel=2,
                )
        return torch.empty(shape, dtype=dtype, device="cpu")

    def fetch(self, tensor: torch.Tensor, after: Any) -> torch.Tensor:
        """Return a copy on the host of what a tensor holds after an event; wait for it."""
        with self.reading(after):
            return self.read(tensor)

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
        """Tell whether copies may outlast a call: what is not pinned may be freed before."""
        return self._pins and host.is_pinned()

    def reading(self, after: Any) -> AbstractContextManager[None]:
        """Give what is done in this block to the stream of copies down, after an event."""
        if self._streams:
            return self._on(self._down, after)
        self.wait(after)  # the copies of this thread need not follow the work of another
        return nullcontext()

    def writing(self, after: Any = None) -> AbstractContextManager[None]:
        """Give what is done in this block to the stream of copies up, after an event if given.

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
        """Let the memory of a tensor be used again only after what both streams were given."""
        if not self._streams:
            return
        sparse = tensor.layout != torch.strided
        for part in (tensor._indices(), tensor._values()) if sparse else (tensor,):
            part.record_stream(self._down)
            part.record_stream(self._up)

    def follow(self, mark: Any) -> None:
        """Let the current stream wait for what `mark` returned."""
        if self._streams:
            self._module.current_stream(self.device).wait_event(mark)

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


# One tensor --------------------------------------------------------------------------------------


def encode(
    codec: Codec, tensor: torch.Tensor, state: State | None, max_nbytes: int | None
) -> Frame:
    """Encode a copy."""
    check(tensor, "tensor", INPUTS)
    return cpu.encode(codec, _fetched(tensor), state, max_nbytes)


def encode_into(
    codec: Codec,
    tensor: torch.Tensor,
    state: State | None,
    out: torch.Tensor,
    max_nbytes: int | None,
) -> int:
    """Encode a copy, and copy the frame to where it is to be."""
    check(tensor, "tensor", INPUTS)
    check_out(out, BYTES)
    if overlap(tensor, out):
        raise ValueError("out shares memory with x")
    frame = staging(out.device).empty(torch.Size([out.numel()]), torch.uint8)
    flat = out.view(-1)
    written = cpu.encode_into(codec, _fetched(tensor), state, frame, max_nbytes)
    try:
        _write(flat[:written], frame[:written])
        return written
    except BaseException as error:
        if state is not None:
            try:
                state.rollback()
            except ValueError:  # with low_memory there is nothing to go back to: write it again
                _write(flat[:written], frame[:written])
                error.nbytes = written  # type: ignore[attr-defined]
        raise


def decode(frame: FrameBytes, out: torch.Tensor | None, max_numel: int | None) -> torch.Tensor:
    """Decode on the host, and copy the result to where it is to be."""
    if out is None:
        decoded = cpu.decode(_bytes(frame), None, max_numel)
        return decoded.to(frame.device) if isinstance(frame, torch.Tensor) else decoded
    check_out(out, OUTPUTS)
    host = staging(out.device).empty(out.shape, out.dtype)
    _write(out, cpu.decode(_bytes(frame), host, max_numel))
    return out


def decode_add(frame: FrameBytes, out: torch.Tensor, scale: float) -> None:
    """Add on the host: an entry may occur twice, and the order of additions is the core's."""
    check_out(out, OUTPUTS)
    host = _fetched(out)
    cpu.decode_add(_bytes(frame), host, scale)
    _write(out, host)


def number(tensor: torch.Tensor) -> Callable[[], float]:
    """Copy a number on the device, and read it later."""
    stage, kept = staging(tensor.device), tensor.detach().clone()
    after = stage.mark()

    @functools.cache
    def read() -> float:
        return float(stage.fetch(kept, after))

    return read


def _fetched(tensor: torch.Tensor) -> torch.Tensor:
    stage = staging(tensor.device)
    return stage.fetch(tensor.detach(), stage.mark())


def _bytes(frame: FrameBytes) -> FrameBytes:
    if not isinstance(frame, torch.Tensor):
        return frame
    check(frame, "frame", BYTES)
    return _fetched(frame)


def _write(out: torch.Tensor, host: torch.Tensor) -> None:
    # A tensor of inference mode can be written to in that mode only.
    with torch.inference_mode(out.is_inference()), torch.no_grad():
        staging(out.device).write(out, host)


def overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Tell whether two tensors share memory."""
    first, second = one.data_ptr(), other.data_ptr()
    if one.device != other.device or not (first and second):  # not all tensors tell where they are
        return False
    return first < second + other.nbytes and second < first + one.nbytes


# Buckets -----------------------------------------------------------------------------------------


def bucket(buffer: torch.Tensor, on_device: bool = False) -> "HostBucket":
    """Return a bucket that will be copied once its gradients are there."""
    del on_device  # frames are where the core is
    return HostBucket(buffer)


class HostBucket(cpu.Bucket):
    """A bucket that the core reads and writes in a copy.

    The sending thread makes the copy when it first needs it, and waits for the device there. The
    copy back is only given to the device, and the future is resolved after it in its order.
    """

    __slots__ = ("_after", "_staged", "_staging")

    def __init__(self, buffer: torch.Tensor) -> None:
        self._staging = staging(buffer.device)
        super().__init__(buffer, self._staging.future())
        self._after: Any = self._staging.mark()
        self._staged: torch.Tensor | None = None

    @property
    @override
    def values(self) -> torch.Tensor:
        return self._copied()

    def _copied(self) -> torch.Tensor:
        """Return a copy on the host, which is made once."""
        if self._staged is None:
            self._staged = self._staging.fetch(self.buffer, self._after)
        return self._staged

    @override
    def core(self) -> cpu.Bucket:
        return cpu.bucket(self._copied())

    @override
    def wait(self) -> None:
        self._staging.wait(self._after)

    @override
    def store(self, result: torch.Tensor | None = None) -> None:
        with self._staging.writing(self._after):
            if result is not None:
                self._result = result.to(self.buffer.device)
            else:
                self._staging.write(self.buffer, self.values)
        self._staged = None

    @override
    def resolve(self, *, poisoned: bool) -> None:
        with self._staging.writing(self._after):
            super().resolve(poisoned=poisoned)
        # The caller may free it without having waited for the future, as after an error.
        self._staging.keep(self.buffer)
        self._staged = None
