"""Encoding from tensors on any device and decoding into them, by way of the host.

These calls wait for the device, because a frame is bytes on the host, in the thread that asks.
"""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from gradwire.torch.backends import cpu
from gradwire.torch.backends.checks import BYTES, INPUTS, OUTPUTS, check, check_out
from gradwire.torch.backends.host.staging import staging

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from gradwire.codec import Codec
    from gradwire.frame import Frame
    from gradwire.state import State

__all__ = ["decode", "decode_add", "encode", "encode_into", "number", "overlap"]


def encode(
    codec: "Codec", tensor: torch.Tensor, state: "State | None", max_nbytes: int | None
) -> "Frame":
    """Encode a copy."""
    check(tensor, "tensor", INPUTS)
    return cpu.encode(codec, _fetched(tensor), state, max_nbytes)


def encode_into(
    codec: "Codec",
    tensor: torch.Tensor,
    state: "State | None",
    out: torch.Tensor,
    max_nbytes: int | None,
) -> int:
    """Encode a copy, and copy the frame to where it is to be."""
    check(tensor, "tensor", INPUTS)
    check_out(out, BYTES)
    if overlap(tensor, out):
        raise ValueError("out shares memory with x")
    frame = staging(out.device).empty(torch.Size([out.numel()]), torch.uint8)
    written = cpu.encode_into(codec, _fetched(tensor), state, frame, max_nbytes)
    try:
        _write(out.view(-1)[:written], frame[:written])
        return written
    except BaseException as error:
        _deliver(error, state, out, frame[:written])
        raise


def decode(
    frame: "Frame | Buffer | torch.Tensor", out: torch.Tensor | None, max_numel: int | None
) -> torch.Tensor:
    """Decode on the host, and copy the result to where it is to be."""
    if out is None:
        decoded = cpu.decode(_bytes(frame), None, max_numel)
        return decoded.to(frame.device) if isinstance(frame, torch.Tensor) else decoded
    check_out(out, OUTPUTS)
    host = staging(out.device).empty(out.shape, out.dtype)
    _write(out, cpu.decode(_bytes(frame), host, max_numel))
    return out


def decode_add(frame: "Frame | Buffer | torch.Tensor", out: torch.Tensor, scale: float) -> None:
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


def _deliver(
    error: BaseException, state: "State | None", out: torch.Tensor, frame: torch.Tensor
) -> None:
    """Undo an encode whose frame was not written because of an error; else write it again."""
    if state is None:
        return
    try:
        state.rollback()
    except ValueError:  # with low_memory there is nothing to go back to
        _write(out.view(-1)[: frame.numel()], frame)
        error.nbytes = frame.numel()  # type: ignore[attr-defined]


def _fetched(tensor: torch.Tensor) -> torch.Tensor:
    stage = staging(tensor.device)
    return stage.fetch(tensor.detach(), stage.mark())


def _bytes(frame: "Frame | Buffer | torch.Tensor") -> "Frame | Buffer | torch.Tensor":
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
