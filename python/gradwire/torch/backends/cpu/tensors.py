"""Encoding from torch tensors on the CPU and decoding into them.

They are passed on as numpy arrays that share their memory, without a copy, in about two
microseconds. numpy has no bfloat16, so bfloat16 tensors are passed as uint16 with a flag.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from gradwire import _native
from gradwire.torch.backends.checks import BYTES, INPUTS, OUTPUTS, bump_version, check, check_out

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from typing_extensions import Buffer

    from gradwire.codec import Codec
    from gradwire.frame import Frame
    from gradwire.state import State

__all__ = ["decode", "decode_add", "encode", "encode_into", "number", "shared"]


def encode(
    codec: "Codec", tensor: torch.Tensor, state: "State | None", max_nbytes: int | None
) -> "Frame":
    """Encode a tensor in place."""
    array, bfloat16 = shared(tensor)
    return codec._encode(array, state, max_nbytes, bfloat16)


def encode_into(
    codec: "Codec",
    tensor: torch.Tensor,
    state: "State | None",
    out: torch.Tensor,
    max_nbytes: int | None,
) -> int:
    """Encode a tensor into another one, both in place."""
    array, bfloat16 = shared(tensor)
    target = _writable(out, BYTES)
    # Before the encode: whatever ran after it could be interrupted and lose the length.
    bump_version(out)
    return codec._encode_into(array, state, target, max_nbytes, bfloat16)


def decode(
    frame: "Frame | Buffer | torch.Tensor", out: torch.Tensor | None, max_numel: int | None
) -> torch.Tensor:
    """Decode to a new tensor, or in place."""
    if out is None:
        return torch.from_numpy(_native.decode(_bytes(frame), None, max_numel))
    _native.decode(_bytes(frame), _writable(out, OUTPUTS), max_numel)
    bump_version(out)
    return out


def decode_add(frame: "Frame | Buffer | torch.Tensor", out: torch.Tensor, scale: float) -> None:
    """Decode and add in place."""
    _native.decode_add(_bytes(frame), _writable(out, OUTPUTS), scale)
    bump_version(out)


def number(tensor: torch.Tensor) -> Callable[[], float]:
    """Read a number now, and return it later."""
    value = float(tensor)
    return lambda: value


def shared(tensor: torch.Tensor) -> "tuple[NDArray[Any], bool]":
    """Return an array that shares a tensor's memory, and whether it holds bfloat16 as uint16."""
    check(tensor, "tensor", INPUTS)
    if tensor.requires_grad:
        tensor = tensor.detach()
    if tensor.dtype is torch.bfloat16:
        return tensor.view(torch.uint16).numpy(), True
    return tensor.numpy(), False


def _writable(out: torch.Tensor, dtypes: tuple[torch.dtype, ...]) -> "NDArray[Any]":
    check_out(out, dtypes)
    return out.detach().numpy() if out.requires_grad else out.numpy()


def _bytes(frame: "Frame | Buffer | torch.Tensor") -> "Frame | Buffer | NDArray[np.uint8]":
    if not isinstance(frame, torch.Tensor):
        return frame
    check(frame, "frame", BYTES)
    array: NDArray[np.uint8] = frame.numpy()
    return array
