"""Tensors on a device without a backend of its own: the host encodes copies of them.

It only needs copies, so it supports any device: CUDA without the extension, ROCm, XPU, MPS. Every
gradient is copied to the host, and averages are copied back: correct everywhere, and slower than a
backend that works on the device.

Calls for one tensor wait for the device in the calling thread, because a frame is bytes on the
host. States are the core's.
"""

import functools
from collections.abc import Callable

import torch

from gradwire._codec import Codec
from gradwire.frame import Frame
from gradwire.state import State
from gradwire.torch.backends import cpu
from gradwire.torch.backends.bucket import Bucket, DeviceBucket
from gradwire.torch.backends.cpu import BYTES, INPUTS, OUTPUTS, FrameBytes, check, check_out
from gradwire.torch.backends.staging import naming_loss, staging

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
    stage, kept = staging(tensor.device), tensor.detach().clone()
    after = stage.mark()

    @functools.cache
    def read() -> float:
        return float(stage.fetch(kept, after))

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
    stage = staging(buffer.device)
    return DeviceBucket(buffer, stage, on_device=True) if on_device else Bucket(buffer, stage)
