"""One packed tensor."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwire import _native
from gradwire._validate import require
from gradwire.errors import CorruptFrameError

DTYPES = ("float32", "float16", "bfloat16")

_HEADER = 48


@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class Packed:
    """A tensor in a few bits per entry.

    Parameters
    ----------
    frame : bytes-like
        One dense frame of `gradwire.quantize.Affine`, whose checksum, steps and bases are checked.
    shape : tuple of int
        Of the tensor.
    dtype : {"float32", "float16", "bfloat16"}
        Dtype of the original tensor; `unpack` returns float32.
    further : bytes-like, optional
        The codes of further bits, after their CRC-32C, which is checked when they are used.
    more : int
        Bits per further code.
    measured : float, optional
        The relative error when the tensor was packed.

    Raises
    ------
    CorruptFrameError
        The bytes are not such a frame, or have another number of entries than `shape`; there are
        more or fewer bytes of further bits, or they and those of the frame are more than 8.
    """

    frame: Any
    shape: tuple[int, ...]
    dtype: str = "float32"
    further: Any = None
    more: int = 0
    measured: float | None = None

    def __post_init__(self) -> None:
        numel = _native.packed_check(self.frame)
        fits, corrupt = numel == math.prod(self.shape) and numel >= 1, CorruptFrameError
        require(fits, "{} entries do not fit shape {}", numel, self.shape, kind=corrupt)
        have = 0 if self.further is None else memoryview(self.further).nbytes
        need = 4 + (numel * self.more + 7) // 8 if self.more else 0
        fits = have == need and self.bits <= 8
        require(fits, "{} bytes of {} further bits", have, self.more, kind=corrupt)

    def __repr__(self) -> str:
        return f"Packed({self.shape}, {self.dtype}, {self.bits_per_weight:.2f} bits a weight)"

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what `pickle` needs: a copy of the bytes, wherever they lie."""
        further = None if self.further is None else bytes(self.further)
        fields = bytes(self.frame), self.shape, self.dtype, further, self.more, self.measured
        return Packed, fields

    def __deepcopy__(self, memo: object) -> "Packed":
        """Return the tensor itself: nothing changes it."""
        return self

    @property
    def first_bits(self) -> int:
        """Number of bits per code in the frame."""
        return int(memoryview(self.frame)[_HEADER])

    @property
    def bits(self) -> int:
        """Bits of a code, including further ones."""
        return self.first_bits + self.more

    @property
    def block(self) -> int:
        """Entries that share a step and a base."""
        block = int.from_bytes(memoryview(self.frame)[_HEADER + 4 : _HEADER + 8], "little")
        return min(block, math.prod(self.shape))

    @property
    def nbytes(self) -> int:
        """Bytes of all codes and grids."""
        further = 0 if self.further is None else memoryview(self.further).nbytes
        return memoryview(self.frame).nbytes + further

    @property
    def bits_per_weight(self) -> float:
        """Bits per entry, with everything."""
        return 8 * self.nbytes / math.prod(self.shape)

    def keep(self, bits: int) -> "Packed":
        """Return the tensor in fewer bits, without further ones.

        Of 4 bits and 4 further ones it may be 4 or 8; others are a ValueError.
        """
        if bits == self.bits:
            return self
        known = f"{self.bits}" if not self.more else f"{self.first_bits} and {self.bits}"
        first = bits == self.first_bits
        require(first, "bits must be {}, which the tensor holds, got {!r}", known, bits)
        # What was measured is of all bits.
        return dataclasses.replace(self, further=None, more=0, measured=None)

    def joined(self) -> Any:
        """Return one frame of all bits; a CorruptFrameError if further codes are corrupt."""
        if self.further is None:
            return self.frame
        return _native.packed_join(self.frame, self.further, self.more)

    def unpack(
        self, out: NDArray[np.float32] | None = None, bits: int | None = None
    ) -> NDArray[np.float32]:
        """Return the tensor as float32, in `out` if that is given.

        Parameters
        ----------
        out : numpy.ndarray, optional
            float32, C-contiguous, of as many elements.
        bits : int, optional
            Number of bits to use; all by default.

        Raises
        ------
        ValueError
            `out` has the wrong size, the tensor does not hold this number of bits, or its codes are
            corrupt.
        """
        frame = (self if bits is None else self.keep(bits)).joined()
        if out is None:
            out = np.empty(self.shape, np.float32)
        _native.packed_rows(frame, math.prod(self.shape), 0, 1, out)
        return out

    def error(self, array: NDArray[Any] | None = None) -> float | None:
        """Return the error relative to a tensor: root of mean squared error over root mean square.

        Without a tensor, the error measured when this one was packed, or None.
        """
        if array is None:
            return self.measured
        values = np.ascontiguousarray(array, np.float32)
        return _native.packed_error(self.joined(), values.reshape(-1))


def totals(packed: Sequence[tuple[str, int, int, float]], of: int, before: int, after: int) -> str:
    """Return a line on packed tensors (name, entries, bytes, relative error) among so many."""
    line = f"packed {len(packed)} of {of} tensors"
    if not packed:
        return line
    numel = sum(entries for _, entries, _, _ in packed)
    bits = 8 * sum(nbytes for _, _, nbytes, _ in packed) / numel
    mean = sum(entries * error for _, entries, _, error in packed) / numel
    worst = max(packed, key=lambda tensor: tensor[3])[0]
    return (
        f"{line}: {before / 1e6:.2f} MB -> {after / 1e6:.2f} MB, {bits:.2f} bits a weight; "
        f"mean error {mean:.1%}, worst {worst}"
    )


def row_of(shape: tuple[int, ...]) -> int:
    """Return the number of entries in a row: all, if there is no second dimension."""
    return math.prod(shape[1:]) if len(shape) > 1 else math.prod(shape)
