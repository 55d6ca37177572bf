"""Tensors on a device without a backend of its own: the host encodes copies of them.

It only needs copies, so it supports any device: CUDA without the extension, ROCm, XPU, MPS. Every
gradient is copied to the host, and averages are copied back: correct everywhere, and slower than a
backend that works on the device.

Calls for one tensor wait for the device in the calling thread, because a frame is bytes on the
host. States are the core's.
"""

import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import override

from gradwire._codec import Codec
from gradwire.frame import Frame
from gradwire.state import State
from gradwire.torch.backends import cpu
from gradwire.torch.backends.cpu import (
    BYTES,
    INPUTS,
    OUTPUTS,
    Bucket,
    FrameBytes,
    check,
    check_out,
    finite,
)
from gradwire.torch.backends.staging import Staging, naming_loss, staging

name = "host"
waits = True
can_stay_on_device = False
values_stay = True
init_state, rollback = cpu.init_state, cpu.rollback


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
    stage, copied = staging(tensor.device), tensor.detach().clone()
    after = stage.mark()

    @functools.cache
    def read() -> float:
        return float(stage.fetch(copied, after))

    return read


def _fetched(tensor: torch.Tensor) -> torch.Tensor:
    with naming_loss(tensor.device):
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


def bucket(buffer: torch.Tensor, on_device: bool = False) -> Bucket:
    """Return a bucket that is copied once its gradients are computed.

    With ``on_device`` it is not copied: nothing can be encoded then.
    """
    kind = DeviceBucket if on_device else StagedBucket
    return kind(buffer, staging(buffer.device))


class StagedBucket(Bucket):
    """A bucket of which the core reads and writes a copy on the host.

    The sending thread makes that when it first needs it, and waits for the device there. The copy
    back is only queued, and the future is resolved after it in the device's order.
    """

    __slots__ = ("_after", "_stage")

    def __init__(self, buffer: torch.Tensor, stage: Staging) -> None:
        super().__init__(buffer, stage.future())
        self._stage = stage
        self._after: Any = stage.mark()
        self._host = None

    @property
    @override
    def values(self) -> torch.Tensor:
        return self._on_host()

    @override
    def _on_host(self) -> torch.Tensor:
        if self._host is None:
            self._host = self._stage.fetch(self.buffer, self._after)
        return self._host

    @override
    def wait(self) -> None:
        self._stage.wait(self._after)

    @override
    def store(self, result: torch.Tensor | None = None) -> None:
        with self._stage.writing(self._after):
            if result is not None:
                self._result = result.to(self.buffer.device)
            elif self.values is not self.buffer:
                self._stage.write(self.buffer, self.values)
        self._host = None

    @override
    def resolve(self, *, poisoned: bool) -> None:
        with self._stage.writing(self._after):
            super().resolve(poisoned=poisoned)
        # The caller may free it without having waited for the future, as after an error.
        self._stage.keep(self.buffer)
        self._host = None


class DeviceBucket(StagedBucket):
    """A bucket whose values are read and written on their device, by operations of torch.

    The sending thread works on the stream of copies to the host, the receiving thread on that of
    copies to the device. With ``on_device``, collectives read from the device. This class does not
    encode or decode: `gradwire.torch.backends.cuda` does.
    """

    __slots__ = ("_on_device",)

    def __init__(self, buffer: torch.Tensor, stage: Staging, *, on_device: bool = True) -> None:
        super().__init__(buffer, stage)
        self._on_device = on_device
        if on_device:
            self.frames_on = buffer.device

    @property
    @override
    def values(self) -> torch.Tensor:
        return self.buffer

    @override
    def _read(self, frames: torch.Tensor) -> NDArray[np.uint8]:
        return super()._read(self._stage.read(frames) if self._on_device else frames)

    @override
    def _upload(self, values: NDArray[Any]) -> torch.Tensor:
        host = super()._upload(values)
        return self._stage.upload(host) if self._on_device else host

    @override
    def used(self, *tensors: torch.Tensor) -> Any:
        if not self._on_device:
            return None
        for tensor in tensors:
            self._stage.keep(tensor)
        return self._stage.mark()

    @override
    def follow(self, mark: Any) -> None:
        if mark is not None:
            self._stage.follow(mark)

    @override
    def sending(self) -> AbstractContextManager[None]:
        return self._stage.reading(self._after)

    @override
    def receiving(self) -> AbstractContextManager[None]:
        return self._stage.writing(self._after)

    @override
    def write_header(self, slot: torch.Tensor, front: NDArray[np.uint8]) -> None:
        if not self._on_device:
            super().write_header(slot, front)
            return
        room = self._stage.empty(torch.Size([front.size]), torch.uint8)
        room.numpy()[:] = front
        self._stage.write(slot[: front.size], room)

    @override
    def average(self, *args: Any, **kwargs: Any) -> NDArray[np.int64]:
        spent = super().average(*args, **kwargs)
        self.values.copy_(self._on_host())
        return spent

    @override
    def pack(self, runs: Sequence[tuple[int, int]], out: torch.Tensor) -> bool:
        if not runs:  # as of a rank of a node that has no share of a bucket
            return True
        parts = [self.buffer[start:stop] for start, stop in runs]
        if self._on_device:
            torch.cat(parts, out=out)
            return finite(out, self._holds)
        out.copy_(self._stage.read(torch.cat(parts)))
        return finite(out)

    @override
    def _there(self, values: torch.Tensor) -> torch.Tensor:
        return values if self._on_device else self._stage.upload(values, self.dtype)

    @override
    def scatter(self, places: Sequence[NDArray[np.int64]], values: torch.Tensor) -> None:
        at = self._stage.upload(torch.from_numpy(np.concatenate(places)))
        self.buffer[at] = self._there(values).to(self.dtype)

    @override
    def finite(self) -> bool:
        self._host = None  # of the gradients: what is not finite is named from what is there now
        return super().finite()

    @override
    def _holds(self, flag: torch.Tensor) -> bool:
        return bool(self._stage.read(flag))

    @override
    def checksum(self) -> int | torch.Tensor:
        return checksum(self.values)


def checksum(values: torch.Tensor) -> torch.Tensor:
    """Compute `Bucket.checksum`, modulo 2**64, on the device of the values."""
    data = values.detach().view(torch.uint8)
    words, rest = data.tensor_split([data.numel() // 8 * 8])
    if words.storage_offset() % 8:
        words = words.clone()
    return words.view(torch.int64).sum() + rest.sum()
