"""Frames, the self-describing bytes of one tensor, and how to decode them."""

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

    Safe for untrusted bytes: lengths, limits and checksum are checked before anything is allocated.
    Each entry is written once. Other Python threads can run, but must not write to the bytes or to
    ``out``.

    Peak memory is that of the result, 4 bytes per entry, plus at most 1 MiB for blocks of
    positions, which each thread keeps for its next decode. Positions that are drawn from a seed
    (`RandomK`) take up to 1/8 byte per entry in addition.

    Parameters
    ----------
    frame : bytes-like
        A `Frame`, or any contiguous buffer with the bytes of one.
    out : numpy.ndarray, optional
        Array to overwrite: float32, writable, C-contiguous, any shape with exactly the frame's
        ``numel`` entries. It is unchanged if the frame is invalid.
    max_numel : int, optional
        Maximum number of entries. Without it, and without ``out``, bytes may claim up to
        `DEFAULT_MAX_NUMEL` entries (a result of 1 GiB); a `Frame` has no limit.

    Returns
    -------
    numpy.ndarray
        ``out``, or a new float32 array of shape (numel,), zero where nothing was sent.

    Raises
    ------
    CorruptFrameError, TruncatedFrameError
        The bytes are not a complete, valid frame.
    FrameTooLargeError
        The frame has more entries than ``max_numel`` or ``out`` allows.
    UnsupportedFrameError
        The frame needs a newer version of this library.
    ValueError, TypeError
        ``out`` has the wrong length, dtype or layout, or is read-only.
    MemoryError
        Not enough memory; ``out`` is unchanged.
    """
    if max_numel is not None:
        max_numel = _validate.integer("max_numel", max_numel, low=0)
    return _native.decode(frame, out, max_numel)


def decode_add(
    frame: "Frame | Buffer | NDArray[np.uint8]", out: "NDArray[np.float32]", scale: float = 1.0
) -> None:
    """Add a frame's entries to a tensor: ``out += scale * decode(frame)``, in float32.

    Only the entries in the frame are touched, so the cost is proportional to their number. The
    whole frame is checked before the first write. Memory is as for `decode`, without the result.

    Parameters
    ----------
    frame : bytes-like
        As in `decode`.
    out : numpy.ndarray
        float32, writable, C-contiguous, with exactly the frame's ``numel`` entries.
    scale : float
        A finite factor, rounded to float32; 1 / ranks for a mean.

    Raises
    ------
    GradwireError, ValueError, TypeError
        As `decode`; ``out`` is unchanged.
    """
    _native.decode_add(frame, out, scale)
