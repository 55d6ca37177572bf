"""Encoding of torch tensors and decoding into them, with the backend of their device."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import Buffer

from gradwire import _validate
from gradwire._codec import Codec
from gradwire.frame import Frame
from gradwire.state import State
from gradwire.torch import backends


def init_state(
    codec: Codec, like: torch.Tensor, *, name: str | None = None, stream: int = 0
) -> State:
    """Create the state of one tensor on its device, like ``codec.init_state`` on the host.

    If CUDA kernels encode (see `backend`), residual and moments are on the device, and `encode`
    does not copy them to the host. Otherwise this is ``codec.init_state``.

    The state has the attributes and methods of `gradwire.State`. Arrays, and ``state_dict``, are
    copies on the host; a ``state_dict`` may be loaded on another device. The methods of the codec
    itself, such as `gradwire.Codec.flush`, move it to the host, where it stays until the next
    `encode` by kernels. That changes no bit of it, but the encode before can then no longer be
    rolled back.

    Parameters
    ----------
    codec : Codec
    like : torch.Tensor
        A tensor with the length and device of those to encode.
    name, stream
        As in `gradwire.Codec.init_state`.

    Returns
    -------
    State
        For `encode` and `encode_into` of tensors on this device or another one.

    Raises
    ------
    ValueError, TypeError
        As `gradwire.Codec.init_state`.
    """
    stream = _validate.integer("stream", stream, low=0)
    return backends.backend_for(like).init_state(codec, like.numel(), name, stream)


def encode(
    codec: Codec,
    tensor: torch.Tensor,
    state: State | None = None,
    *,
    max_nbytes: int | None = None,
) -> Frame:
    """Encode one tensor, like ``codec.encode`` for arrays.

    Parameters
    ----------
    codec : Codec
        The codec that created the state.
    tensor : torch.Tensor
        float32, float64, float16 or bfloat16, any shape, contiguous. Read in place on the CPU, and
        by CUDA kernels with a state from `init_state` or a codec that needs none; else copied to
        the host, which this waits for. It may require gradients, but they do not flow through a
        frame.
    state : State, optional
        From `init_state`, or from `gradwire.Codec.init_state`, which lies on the host; updated.
    max_nbytes
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
        The tensor has an unsupported dtype or layout, or no values, as on the device ``"meta"``.
    """
    return backends.backend_for(tensor).encode(codec, tensor, state, max_nbytes)


def encode_at(
    codec: Codec,
    tensor: torch.Tensor,
    state: State | None,
    positions: NDArray[np.uint32] | torch.Tensor,
) -> Frame:
    """Encode the entries at given positions, on the host: see `gradwire.Codec.encode_at`."""
    backends.cpu.check(tensor, "tensor", backends.cpu.INPUTS)
    array, bfloat16 = backends.cpu.shared(tensor.cpu())
    if isinstance(positions, torch.Tensor):
        positions = positions.cpu().numpy()
    return codec._encode_at(array, state, positions, bfloat16)


def encode_into(
    codec: Codec,
    tensor: torch.Tensor,
    state: State | None,
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
        uint8 on any device, contiguous, sharing no memory with ``tensor``. If the frame does not
        fit, its smallest entries are left out.

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
    return backends.backend_for(tensor, out).encode_into(codec, tensor, state, out, max_nbytes)


def decode(
    frame: Frame | Buffer | torch.Tensor,
    out: torch.Tensor | None = None,
    *,
    max_numel: int | None = None,
) -> torch.Tensor:
    """Decode a frame to a tensor, like `gradwire.decode` for arrays.

    Parameters
    ----------
    frame : bytes-like or torch.Tensor
        A `gradwire.Frame`, any contiguous buffer of bytes, or a uint8 tensor.
    out : torch.Tensor, optional
        float32, contiguous, any shape with exactly the frame's ``numel`` entries.
    max_numel : int, optional
        Maximum number of entries.

    Returns
    -------
    torch.Tensor
        ``out``, or a new float32 tensor of shape (numel,), where the frame is: on its device if it
        is a tensor, else on the CPU.

    Raises
    ------
    CorruptFrameError, TruncatedFrameError, FrameTooLargeError, UnsupportedFrameError
        As `gradwire.decode`.
    ValueError, TypeError
        ``out`` has the wrong length, dtype or layout, no values, or requires gradients.
    """
    if max_numel is not None:
        max_numel = _validate.integer("max_numel", max_numel, low=0)
    return backends.backend_for(frame, out).decode(frame, out, max_numel)


def decode_add(frame: Frame | Buffer | torch.Tensor, out: torch.Tensor, scale: float = 1.0) -> None:
    """Add a frame's entries to a tensor: ``out += scale * decode(frame)``, in float32.

    Parameters
    ----------
    frame : bytes-like or torch.Tensor
        As in `decode`.
    out : torch.Tensor
        float32, contiguous, with exactly the frame's ``numel`` entries.
    scale : float
        A finite factor, rounded to float32.

    Raises
    ------
    GradwireError, ValueError, TypeError
        As `decode`; ``out`` is unchanged.
    """
    backends.backend_for(frame, out).decode_add(frame, out, scale)


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a dense tensor, row by row; on the CPU they share its memory if possible.

    Conjugate and negative views, whose memory holds other values, are resolved.
    """
    plain = tensor.detach().cpu().resolve_conj().resolve_neg()
    return plain.contiguous().reshape(-1).view(torch.uint8)


def has_no_gaps(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Return whether the entries of such a tensor fill their memory, each in its own place.

    Dimensions may be in any order: (3, 4) with strides (1, 3) has none, with strides (8, 1) it has.
    """
    end = 1
    for stride, size in sorted(zip(strides, shape, strict=True)):
        if size != 1 and stride != end:
            return False
        end *= size
    return True
