"""Tensors on the CPU: the Rust core reads and writes them in place, through numpy.

A tensor is passed on as an array that shares its memory, without a copy, in about two microseconds.
numpy has no bfloat16, so bfloat16 tensors are passed as uint16 with a flag.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import Buffer

from gradwire import _native
from gradwire._codec import Codec
from gradwire.frame import Frame
from gradwire.state import State
from gradwire.torch.backends.bucket import Bucket, array_of

name = "cpu"
waits = False
can_stay_on_device = values_stay = False

INPUTS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
OUTPUTS = (torch.float32,)
BYTES = (torch.uint8,)

FrameBytes: TypeAlias = Frame | Buffer | torch.Tensor  # one to decode; a tensor on any device

# One tensor ---------------------------------------------------------------------------------------


def encode(
    codec: Codec, tensor: torch.Tensor, state: State | None, max_nbytes: int | None
) -> Frame:
    """Encode a tensor in place."""
    array, bfloat16 = shared(tensor)
    return codec._encode(array, state, max_nbytes, bfloat16)


def encode_into(
    codec: Codec,
    tensor: torch.Tensor,
    state: State | None,
    out: torch.Tensor,
    max_nbytes: int | None,
) -> int:
    """Encode a tensor into another one, both in place."""
    array, bfloat16 = shared(tensor)
    target = _writable(out, BYTES)
    # Before the encode: whatever ran after it could be interrupted and lose the length.
    bump_version(out)
    return codec._encode_into(array, state, target, max_nbytes, bfloat16)


def decode(frame: FrameBytes, out: torch.Tensor | None, max_numel: int | None) -> torch.Tensor:
    """Decode to a new tensor, or in place."""
    if out is None:
        return torch.from_numpy(_native.decode(_bytes(frame), None, max_numel))
    _native.decode(_bytes(frame), _writable(out, OUTPUTS), max_numel)
    bump_version(out)
    return out


def decode_add(frame: FrameBytes, out: torch.Tensor, scale: float) -> None:
    """Decode and add in place."""
    _native.decode_add(_bytes(frame), _writable(out, OUTPUTS), scale)
    bump_version(out)


def number(tensor: torch.Tensor) -> Callable[[], float]:
    """Read a number now, and return it later."""
    value = float(tensor)
    return lambda: value


def shared(tensor: torch.Tensor) -> tuple[NDArray[Any], bool]:
    """Return an array that shares a tensor's memory, and whether it holds bfloat16 as uint16."""
    check(tensor, "tensor", INPUTS)
    if tensor.requires_grad:
        tensor = tensor.detach()
    return array_of(tensor), tensor.dtype is torch.bfloat16


def _writable(out: torch.Tensor, dtypes: tuple[torch.dtype, ...]) -> NDArray[Any]:
    check_out(out, dtypes)
    return out.detach().numpy() if out.requires_grad else out.numpy()


def _bytes(frame: FrameBytes) -> Frame | Buffer | NDArray[np.uint8]:
    if not isinstance(frame, torch.Tensor):
        return frame
    check(frame, "frame", BYTES)
    array: NDArray[np.uint8] = frame.numpy()
    return array


def check(tensor: torch.Tensor, name: str, dtypes: tuple[torch.dtype, ...]) -> None:
    """Raise a TypeError or ValueError unless a tensor is dense, contiguous and of such a dtype."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(tensor).__name__}")
    # These checks must not cost more than encoding a bias: `device.type` alone takes half a
    # microsecond, and only the message needs it.
    if tensor.layout is not torch.strided:
        raise TypeError(f"{name} must be dense, got layout {tensor.layout}; pass .to_dense()")
    if tensor.is_meta:
        raise TypeError(f"{name} must have values, got one on {tensor.device}")
    if tensor.dtype not in dtypes:
        expected = ", ".join(str(dtype) for dtype in dtypes)
        raise TypeError(f"{name} must have dtype {expected}, got {tensor.dtype}")
    if not tensor.is_contiguous():
        raise ValueError(
            f"{name} must be contiguous, got shape {tuple(tensor.shape)} with strides "
            f"{tensor.stride()}; pass {name}.contiguous()"
        )


def check_out(out: torch.Tensor, dtypes: tuple[torch.dtype, ...]) -> None:
    """Raise as `check`, or a ValueError for a tensor that must not be written to."""
    check(out, "out", dtypes)
    if out.requires_grad and torch.is_grad_enabled():
        raise ValueError(
            "out requires gradients, which cannot flow through a frame; "
            "pass out.detach(), or call under torch.no_grad()"
        )


def bump_version(out: torch.Tensor) -> None:
    """Increment the version of a tensor: autograd may have saved it and must notice the write.

    Inference tensors have no version.
    """
    if not out.is_inference():
        torch.autograd.graph.increment_version(out)


# States ------------------------------------------------------------------------------------------


def init_state(codec: Codec, numel: int, name: str | None, stream: int) -> State:
    """Return a new state."""
    return codec.init_state(numel, name=name, stream=stream)


def rollback(states: Sequence[State]) -> None:
    """Undo the last encode of each state."""
    for state in states:
        state.rollback()


def held(state: Any) -> list[object]:
    """Return the contents of a state for comparison, with arrays as bytes."""
    kept = state.state_dict().values()
    return [each.tobytes() if isinstance(each, np.ndarray) else each for each in kept]


def bucket(buffer: torch.Tensor, on_device: bool = False) -> Bucket:
    """Return a bucket that works on its buffer in place."""
    del on_device  # where the frames are, in any case
    return Bucket(buffer)
