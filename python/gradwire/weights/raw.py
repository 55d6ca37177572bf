"""Tensors as the bytes that files hold, of any dtype."""

import dataclasses
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwire.weights.header import bits_of, dtype_named


@dataclasses.dataclass(frozen=True, eq=False)
class RawTensor:
    """A tensor of a dtype that numpy lacks, such as F4, F6 or one of a newer safetensors.

    Parameters
    ----------
    dtype : str
        Its name in files, such as ``"F4"``.
    shape : tuple of int
        In entries, also of dtypes with fewer than 8 bits: two of ``"F4"`` share a byte.
    data : numpy.ndarray
        uint8, one dimension: the bytes as they are in files.

    Raises
    ------
    ValueError
        ``data`` is not uint8 of one dimension, or has another number of bytes than the shape needs.
    """

    dtype: str
    shape: tuple[int, ...]
    data: NDArray[np.uint8]

    def __post_init__(self) -> None:
        bits, entries = bits_of(self.dtype), math.prod(self.shape)
        if self.data.dtype != np.uint8 or self.data.ndim != 1:
            raise ValueError(f"data must be uint8 of one dimension, got {self.data.dtype}")
        if bits is not None and 8 * self.nbytes != bits * entries:
            raise ValueError(
                f"{entries} entries of {self.dtype} take {bits * entries} bits, got {self.nbytes} "
                "bytes"
            )

    def __repr__(self) -> str:
        """Dtype, shape and bytes."""
        return f"RawTensor({self.dtype!r}, {self.shape}, {self.nbytes} bytes)"

    @property
    def nbytes(self) -> int:
        """Number of bytes."""
        return self.data.nbytes

    def array(self) -> "NDArray[Any] | RawTensor":
        """Return the tensor as an array, which shares its memory if that is aligned.

        A tensor whose dtype numpy lacks is returned as it is.

        Raises
        ------
        ImportError
            It is of bfloat16 or float8, and ml_dtypes is not installed.
        """
        if (dtype := dtype_named(self.dtype)) is None:
            return self
        array = self.data.view(dtype).reshape(self.shape)
        return array if array.flags.aligned else array.copy()
