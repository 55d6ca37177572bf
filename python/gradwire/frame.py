"""Frames: bytes that describe themselves, and the way back to a tensor."""

from typing import TYPE_CHECKING

from gradwire import _native, _validate
from gradwire._native import DEFAULT_MAX_NUMEL, Frame

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from typing_extensions import Buffer

__all__ = ["DEFAULT_MAX_NUMEL", "Frame", "decode", "decode_add"]


def decode(
    frame: "Frame | Buffer | NDArray[np.uint8]",
    out: "NDArray[np.float32] | None" = None,
    *,
    max_numel: int | None = None,
) -> "NDArray[np.float32]":
    """Decode a frame to a flat tensor.

    Safe on bytes from anyone: they are checked against length limits and checksum before anything
    is allocated. One write of n. Other Python threads run meanwhile; none of them may write to the
    bytes or to ``out``.

    The peak of memory is the result, 4 bytes per entry of the tensor, and at most 1 MiB for
    positions, which are decoded in blocks. Positions that are drawn from a seed (`RandomK`) take up
    to 1/8 byte per entry besides. Each thread keeps up to 1 MiB for its next decode.

    Parameters
    ----------
    frame : bytes-like
        A `Frame` or any contiguous buffer of its bytes.
    out : numpy.ndarray, optional
        float32, writable, C-contiguous, any shape of exactly the frame's ``numel`` entries;
        overwritten. It is untouched if the frame is bad.
    max_numel : int, optional
        The longest tensor to accept. Without it, and without ``out``, bytes may claim
        `DEFAULT_MAX_NUMEL` entries (a result of 1 GiB) and a `Frame` as many as it has.

    Returns
    -------
    numpy.ndarray
        ``out``, or a new float32 array of shape (numel,), zero where nothing was sent.

    Raises
    ------
    CorruptFrameError, TruncatedFrameError
        The bytes are not a whole frame.
    FrameTooLargeError
        More entries than ``max_numel`` or ``out`` allow.
    UnsupportedFrameError
        A frame of a newer version.
    ValueError, TypeError
        ``out`` of another length, dtype or layout, or read-only.
    MemoryError
        Not enough memory; ``out`` is untouched.
    """
    if max_numel is not None:
        max_numel = _validate.integer("max_numel", max_numel, low=0)
    return _native.decode(frame, out, max_numel)


def decode_add(
    frame: "Frame | Buffer | NDArray[np.uint8]", out: "NDArray[np.float32]", scale: float = 1.0
) -> None:
    """Add a frame's entries to a tensor: ``out += scale * decode(frame)``, in float32.

    Only the entries sent are touched, so the cost is in proportion to them. The frame is checked
    whole before the first write. Memory as for `decode`, without the result.

    Parameters
    ----------
    frame : bytes-like
        As in `decode`.
    out : numpy.ndarray
        float32, writable, C-contiguous, of exactly the frame's ``numel`` entries.
    scale : float
        A finite factor, rounded to float32: 1/ranks for a mean.

    Raises
    ------
    GradwireError, ValueError, TypeError
        As `decode`; ``out`` is untouched then.
    """
    _native.decode_add(frame, out, scale)
