"""Orthonormal columns with the same bits on every processor."""

import numpy as np
from numpy.typing import NDArray

_EPSILON = 1e-8


def orthonormalize(columns: NDArray[np.float32]) -> None:
    """Make the columns of a matrix orthonormal, in place: modified Gram-Schmidt.

    It multiplies, adds, divides and takes roots of whole arrays, one operation at a time, and sums
    products in tree order. IEEE 754 defines the rounding of each, whatever the SIMD level; BLAS,
    ``np.sum`` and fused multiply-adds would differ between processors.

    ``columns`` is the transposed matrix, of shape (rank, rows). A column of zeros stays zero, and
    one that depends linearly on earlier ones becomes its rounding error. All NaN have the same
    bits. It takes about 4 passes over the matrix for each of its columns, in float64.

    See algorithm 1 of the paper of `gradwire.powersgd`.
    """
    with np.errstate(all="ignore"):  # what is not finite, the caller finds
        for at, column in enumerate(columns):
            rest = columns[at + 1 :]
            # With itself and with the rest; products of float32 are exact in float64.
            dots = _total(np.multiply(column, columns[at:], dtype=np.float64))
            length = np.sqrt(dots[0]) + _EPSILON
            np.divide(column, length, out=column, dtype=np.float64, casting="same_kind")
            if len(rest):
                shares = (dots[1:] / length)[:, np.newaxis]
                parts = np.multiply(shares, column, dtype=np.float64)
                np.subtract(rest, parts, out=rest, dtype=np.float64, casting="same_kind")
    columns[np.isnan(columns)] = np.nan  # processors give it other signs


def _total(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the sums of rows, which are overwritten: the second half is added to the first."""
    length = rows.shape[1]
    while length > 1:
        half = (length + 1) // 2
        rows[:, : length - half] += rows[:, half:length]
        length = half
    return rows[:, 0]
