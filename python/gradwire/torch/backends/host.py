"""Tensors on a device without a backend of its own: the host encodes copies of them.

It only needs copies, so it supports any device: CUDA without the extension, ROCm, XPU, MPS. Every
gradient is copied to the host, and averages are copied back: correct everywhere, and slower than a
backend that works on the device.

Calls for one tensor wait for the device in the calling thread, because a frame is bytes on the
host. States are the core's.
"""

import contextlib
import functools
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import override

from gradwire._codec import Codec
from gradwire.errors import DeviceError
from gradwire.frame import Frame
from gradwire.state import State
from gradwire.torch.backends import cpu
from gradwire.torch.backends.cpu import BYTES, INPUTS, OUTPUTS, FrameBytes, check, check_out

name = "host"
waits = True
can_stay_on_device = False
values_stay = True
init_state, rollback = cpu.init_state, cpu.rollback

_STREAMS = ("Event", "Stream", "current_stream", "device", "stream")
_NO_PINS = ("out of memory", "memory allocation", "pin memory", "pinned memory", "not supported")
"""Words of errors that mean there is no pinned memory, or no more of it, and no lost device."""

# Devices that are lost --------------------------------------------------------------------------


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
def told(device: torch.device) -> Iterator[None]:
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


# Copies -------------------------------------------------------------------------------------------


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
        with told(self.device), self.reading(after):
            return self.read(tensor)

    def read(self, tensor: torch.Tensor) -> torch.Tensor:
        """Copy a tensor to the host in the order of the current stream; wait for this copy only."""
        return self.read_all([tensor])[0]

    def read_all(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Read several tensors as `read` does, with a single wait."""
        with told(self.device):
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
        with told(self.device):
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
        with told(self.device):
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
    """Encode a copy, and copy the frame to its destination."""
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
    except BaseException:
        if state is not None:
            state.rollback()
        raise


def decode(frame: FrameBytes, out: torch.Tensor | None, max_numel: int | None) -> torch.Tensor:
    """Decode on the host, and copy the result to its destination."""
    if out is None:
        decoded = cpu.decode(_bytes(frame), None, max_numel)
        return decoded.to(frame.device) if isinstance(frame, torch.Tensor) else decoded
    check_out(out, OUTPUTS)
    host = staging(out.device).empty(out.shape, out.dtype)
    _write(out, cpu.decode(_bytes(frame), host, max_numel))
    return out


def decode_add(frame: FrameBytes, out: torch.Tensor, scale: float) -> None:
    """Add on the host, in the core's order of additions: an entry may occur twice."""
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
    with told(tensor.device):
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
    """Return a bucket that is copied once its gradients are computed.

    With ``on_device`` it is not copied: nothing can be encoded then.
    """
    return DeviceBucket(buffer, True) if on_device else HostBucket(buffer)


class HostBucket(cpu.Bucket):
    """A bucket that the core reads and writes in a copy.

    The sending thread makes the copy when it first needs it, and waits for the device there. The
    copy back is only queued, and the future is resolved after it in the device's order.
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
        """Return the copy on the host, which is made once."""
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


class DeviceBucket(HostBucket):
    """A bucket whose values are read and written on their device, by operations of torch.

    The sending thread works on the stream of copies to the host, the receiving thread on that of
    copies to the device, as for a bucket that is copied. With ``on_device``, collectives read from
    the device. This class does not encode or decode: `gradwire.torch.backends.cuda` does.
    """

    __slots__ = ("_on_device",)

    def __init__(self, buffer: torch.Tensor, on_device: bool) -> None:
        super().__init__(buffer)
        self._on_device = on_device
        if on_device:
            self.frames_on = buffer.device

    @property
    @override
    def values(self) -> torch.Tensor:
        return self.buffer

    # Both threads -----------------------------------------------------------------------------

    @override
    def used(self, *tensors: torch.Tensor) -> Any:
        if not self._on_device:
            return None  # threads wait for what reads frames on the host
        for each in tensors:
            self._staging.keep(each)
        return self._staging.mark()

    @override
    def follow(self, mark: Any) -> None:
        if mark is not None:
            self._staging.follow(mark)

    # The sending thread -----------------------------------------------------------------------

    @override
    def sending(self) -> AbstractContextManager[None]:
        return self._staging.reading(self._after)

    @override
    def gradient(self, start: int, stop: int, scale: float) -> NDArray[Any]:
        return self.core().gradient(start, stop, scale)

    @override
    def write_header(self, slot: torch.Tensor, front: NDArray[np.uint8]) -> None:
        if not self._on_device:
            super().write_header(slot, front)
            return
        room = self._staging.empty(torch.Size([front.size]), torch.uint8)
        room.numpy()[:] = front
        self._staging.write(slot[: front.size], room)

    @override
    def pack(self, runs: Sequence[tuple[int, int]], out: torch.Tensor) -> bool:
        if not runs:  # as of a rank of a node that has no share of a bucket
            return True
        parts = [self.buffer[start:stop] for start, stop in runs]
        if self._on_device:
            torch.cat(parts, out=out)
            return cpu.finite(out, self._holds)
        out.copy_(self._staging.read(torch.cat(parts)))
        return cpu.finite(out)

    @override
    def not_finite(self, start: int, stop: int, width: int) -> tuple[int, int]:
        return self.core().not_finite(start, stop, width)

    @override
    def sparse(self) -> torch.Tensor:
        return self.core().values

    # The receiving thread ---------------------------------------------------------------------

    @override
    def receiving(self) -> AbstractContextManager[None]:
        return self._staging.writing(self._after)

    @override
    def read_headers(self, slots: torch.Tensor, nbytes: int) -> NDArray[np.uint8]:
        return self._down(slots[:, :nbytes]).numpy()

    def _there(self, values: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Copy exchanged values to the device, if they are not there."""
        return values if self._on_device else self._staging.upload(values, dtype)

    def _up(self, frames: torch.Tensor) -> torch.Tensor:
        """Copy what the core has made to where frames are."""
        return self._staging.upload(frames) if self._on_device else frames

    def _down(self, frames: torch.Tensor) -> torch.Tensor:
        """Copy frames to the host for the core, if they are not there."""
        return self._staging.read(frames) if self._on_device else frames

    @override
    def unpack(self, runs: Sequence[tuple[int, int]], values: torch.Tensor) -> None:
        if not runs:
            return
        lengths = [stop - start for start, stop in runs]
        parts = torch.split(self._there(values, self.dtype), lengths)
        torch._foreach_copy_([self.buffer[start:stop] for start, stop in runs], parts)

    @override
    def scatter(self, places: Sequence[NDArray[np.int64]], values: torch.Tensor) -> None:
        at = self._staging.upload(torch.from_numpy(np.concatenate(places)))
        self.buffer[at] = self._there(values, self.dtype).to(self.dtype)

    @override
    def finite(self) -> bool:
        self._staged = None  # of the gradients: what is not finite is named from what is there now
        return super().finite()

    def _holds(self, flag: torch.Tensor) -> bool:
        return bool(self._staging.read(flag))

    @override
    def checksum(self) -> int | torch.Tensor:
        return checksum(self.values)

    @override
    def store(self, result: torch.Tensor | None = None) -> None:
        if result is not None:
            self._result = result.to(self.buffer.device)
        self._staged = None


def checksum(values: torch.Tensor) -> torch.Tensor:
    """Compute `Bucket.checksum`, modulo 2**64, on the device of the values."""
    data = values.detach().view(torch.uint8)
    words, rest = data.tensor_split([data.numel() // 8 * 8])
    if words.storage_offset() % 8:
        words = words.clone()
    return words.view(torch.int64).sum() + rest.sum()
