"""Encoding from torch tensors and decoding into them.

Tensors on the CPU are passed on as numpy arrays that share their memory, without a copy, in about
two microseconds. numpy has no bfloat16, so bfloat16 tensors are passed as uint16 with a flag.
"""

from typing import TYPE_CHECKING

import torch

from gradwire import _native, _validate

if TYPE_CHECKING:
    from typing import Any

    import numpy as np
    from numpy.typing import NDArray
    from typing_extensions import Buffer

    from gradwire.codec import Codec
    from gradwire.frame import Frame
    from gradwire.state import State

__all__ = ["decode", "decode_add", "encode", "encode_into"]

_INPUTS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def encode(
    codec: "Codec",
    tensor: torch.Tensor,
    state: "State | None" = None,
    *,
    max_nbytes: int | None = None,
) -> "Frame":
    """Encode one tensor, like ``codec.encode`` for arrays.

    Parameters
    ----------
    codec : Codec
        The codec that created the state.
    tensor : torch.Tensor
        float32, float64, float16 or bfloat16 on the CPU, any shape, contiguous. Read in place. It
        may require gradients, but they do not flow through a frame.
    state, max_nbytes
        As in `gradwire.Codec.encode`.

    Returns
    -------
    Frame
        A read-only buffer of bytes.

    Raises
    ------
    NonFiniteError, StateInUseError, ValueError
        As `gradwire.Codec.encode`; also if the tensor is not contiguous.
    TypeError
        The tensor has another dtype, layout or device.
    """
    array, bfloat16 = _readable(tensor)
    return codec._encode(array, state, max_nbytes, bfloat16)


def encode_into(
    codec: "Codec",
    tensor: torch.Tensor,
    state: "State | None",
    out: torch.Tensor,
    *,
    max_nbytes: int | None = None,
) -> int:
    """Encode into a tensor of bytes, like ``codec.encode_into`` for arrays.

    Parameters
    ----------
    codec, tensor, state, max_nbytes
        As in `encode`.
    out : torch.Tensor
        uint8 on the CPU, contiguous, sharing no memory with ``tensor``. If the frame does not fit,
        its smallest entries are left out.

    Returns
    -------
    int
        Number of bytes written at the start of ``out``.

    Raises
    ------
    GradwireError, ValueError, TypeError
        As `encode`; also if ``out`` cannot be written to or shares memory with ``tensor``. ``out``
        is written only on success.
    """
    array, bfloat16 = _readable(tensor)
    target = _writable(out, torch.uint8)
    written = codec._encode_into(array, state, target, max_nbytes, bfloat16)
    _bump_version(out)
    return written


def decode(
    frame: "Frame | Buffer | torch.Tensor",
    out: torch.Tensor | None = None,
    *,
    max_numel: int | None = None,
) -> torch.Tensor:
    """Decode a frame to a tensor, like `gradwire.decode` for arrays.

    Parameters
    ----------
    frame : bytes-like or torch.Tensor
        A `gradwire.Frame`, any contiguous buffer of bytes, or a uint8 tensor on the CPU.
    out : torch.Tensor, optional
        float32 on the CPU, contiguous, any shape with exactly the frame's ``numel`` entries.
    max_numel : int, optional
        Maximum number of entries.

    Returns
    -------
    torch.Tensor
        ``out``, or a new float32 tensor of shape (numel,).

    Raises
    ------
    CorruptFrameError, TruncatedFrameError, FrameTooLargeError, UnsupportedFrameError
        As `gradwire.decode`.
    ValueError, TypeError
        ``out`` has another length, dtype, layout or device, or requires gradients.
    """
    if max_numel is not None:
        max_numel = _validate.integer("max_numel", max_numel, low=0)
    if out is None:
        return torch.from_numpy(_native.decode(_bytes(frame), None, max_numel))
    _native.decode(_bytes(frame), _writable(out, torch.float32), max_numel)
    _bump_version(out)
    return out


def decode_add(
    frame: "Frame | Buffer | torch.Tensor", out: torch.Tensor, scale: float = 1.0
) -> None:
    """Add a frame's entries to a tensor: ``out += scale * decode(frame)``, in float32.

    Parameters
    ----------
    frame : bytes-like or torch.Tensor
        As in `decode`.
    out : torch.Tensor
        float32 on the CPU, contiguous, with exactly the frame's ``numel`` entries.
    scale : float
        A finite factor, rounded to float32.

    Raises
    ------
    GradwireError, ValueError, TypeError
        As `decode`; ``out`` is unchanged.
    """
    _native.decode_add(_bytes(frame), _writable(out, torch.float32), scale)
    _bump_version(out)


def _readable(tensor: torch.Tensor) -> "tuple[NDArray[Any], bool]":
    _check(tensor, "tensor", _INPUTS)
    if tensor.requires_grad:
        tensor = tensor.detach()
    if tensor.dtype is torch.bfloat16:
        return tensor.view(torch.uint16).numpy(), True
    return tensor.numpy(), False


def _writable(out: torch.Tensor, dtype: torch.dtype) -> "NDArray[Any]":
    _check(out, "out", (dtype,))
    if not out.requires_grad:
        return out.numpy()
    if torch.is_grad_enabled():
        raise ValueError(
            "out requires gradients, which cannot flow through a frame; "
            "pass out.detach(), or call under torch.no_grad()"
        )
    return out.detach().numpy()


def _bytes(frame: "Frame | Buffer | torch.Tensor") -> "Frame | Buffer | NDArray[np.uint8]":
    if not isinstance(frame, torch.Tensor):
        return frame
    _check(frame, "frame", (torch.uint8,))
    array: NDArray[np.uint8] = frame.numpy()
    return array


def _check(tensor: torch.Tensor, name: str, dtypes: tuple[torch.dtype, ...]) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(tensor).__name__}")
    # These checks must not cost more than encoding a bias: `device.type` alone takes half a
    # microsecond, and only the message needs it.
    if tensor.layout is not torch.strided:
        raise TypeError(f"{name} must be dense, got layout {tensor.layout}; pass .to_dense()")
    if not tensor.is_cpu:
        raise TypeError(
            f"{name} must be on the CPU, got one on {tensor.device}; move it with .cpu()"
        )
    if tensor.dtype not in dtypes:
        expected = ", ".join(str(dtype) for dtype in dtypes)
        raise TypeError(f"{name} must have dtype {expected}, got {tensor.dtype}")
    if not tensor.is_contiguous():
        raise ValueError(
            f"{name} must be contiguous, got shape {tuple(tensor.shape)} with strides "
            f"{tensor.stride()}; pass {name}.contiguous()"
        )


def _bump_version(out: torch.Tensor) -> None:
    # torch does not see writes through numpy. The new version lets it detect that a tensor saved
    # for backward was overwritten. Inference tensors have no version.
    if not out.is_inference():
        torch.autograd.graph.increment_version(out)
