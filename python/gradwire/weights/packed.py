"""One packed tensor."""

import dataclasses
import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwire import _native
from gradwire._codec import Codec
from gradwire._validate import MAX_NUMEL
from gradwire.errors import CorruptFrameError, NonFiniteError
from gradwire.memory import NoMemory
from gradwire.quantize import Affine
from gradwire.sparsify import All

DTYPES = ("float32", "float16", "bfloat16")
LARGEST = 2.0**118  # a magnitude that a grid reaches
LEAST_BLOCK = 16  # entries: a smaller block would take more bits for its grid than for its codes

_HEADER = 48
_QUANTIZER, _AFFINE = 7, 12
_EXPONENT, _LEAST_EXPONENT = slice(10, 12), -103
_NUMEL = slice(16, 24)


@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class Packed:
    """A tensor in a few bits an entry.

    Parameters
    ----------
    frame : bytes-like
        One dense frame of `gradwire.quantize.Affine`. Only its header is looked at here, as it may
        lie in a file of which no page was read: `gradwire.Frame(frame)` checks all of it.
    shape : tuple of int
        Of the tensor.
    dtype : {"float32", "float16", "bfloat16"}
        Of the tensor that was packed; `unpack` gives float32.
    further : bytes-like, optional
        The codes of further bits, after their CRC-32C.
    more : int
        Bits per further code.
    measured : float, optional
        The relative error when the tensor was packed.

    Raises
    ------
    CorruptFrameError
        The bytes are no such frame, or of another number of entries than `shape`.
    """

    frame: Any
    shape: tuple[int, ...]
    dtype: str = "float32"
    further: Any = None
    more: int = 0
    measured: float | None = None

    def __post_init__(self) -> None:
        head = bytes(memoryview(self.frame)[: _HEADER + 8])
        if len(head) < _HEADER + 8 or head[_QUANTIZER] != _AFFINE:
            raise CorruptFrameError("it holds no packed tensor")
        numel = int.from_bytes(head[_NUMEL], "little")
        if numel != math.prod(self.shape):
            raise CorruptFrameError(f"{numel} entries are not of shape {self.shape}")

    def __repr__(self) -> str:
        """Shape, dtype and bits."""
        return f"Packed({self.shape}, {self.dtype}, {self.bits_per_weight:.2f} bits a weight)"

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what `pickle` needs: a copy of the bytes, wherever they lie."""
        further = None if self.further is None else bytes(self.further)
        own = (bytes(self.frame), self.shape, self.dtype, further, self.more, self.measured)
        return Packed, own

    def __deepcopy__(self, memo: object) -> "Packed":
        """Return the tensor itself: nothing changes it."""
        return self

    @property
    def first_bits(self) -> int:
        """Bits of a code of the frame."""
        return int(memoryview(self.frame)[_HEADER])

    @property
    def bits(self) -> int:
        """Bits of a code of all that is held."""
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
        """Bits an entry takes, with everything."""
        return 8 * self.nbytes / math.prod(self.shape)

    def keep(self, bits: int) -> "Packed":
        """Return the tensor in fewer bits, without further ones.

        Raises
        ------
        ValueError
            It does not hold so many bits, as a tensor of 4 and 4 further ones holds 4 and 8.
        """
        if bits == self.bits:
            return self
        if bits != self.first_bits:
            held = f"{self.bits}" if not self.more else f"{self.first_bits} and {self.bits}"
            raise ValueError(f"bits must be {held}, which the tensor holds, got {bits!r}")
        # What was measured is of all bits.
        return dataclasses.replace(self, further=None, more=0, measured=None)

    def joined(self) -> Any:
        """Return one frame of all bits: `frame` if there are no further ones.

        Raises
        ------
        CorruptFrameError
            The further codes are corrupt.
        """
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
            How many of the bits that are held; all by default.

        Raises
        ------
        ValueError
            `out` has another size, or so many bits are not held.
        CorruptFrameError
            The codes are corrupt.
        """
        frame = (self if bits is None else self.keep(bits)).joined()
        if out is None:
            out = np.empty(self.shape, np.float32)
        _native.packed_rows(frame, math.prod(self.shape), 0, 1, out)
        return out

    def error(self, array: NDArray[Any] | None = None) -> float | None:
        """Return the error relative to a tensor: root of mean squared error over root mean square.

        Without a tensor, what was measured when this one was packed, or None if nobody did.
        """
        if array is None:
            return self.measured
        values = np.ascontiguousarray(array, np.float32)
        return _native.packed_error(self.joined(), values.reshape(-1))


def totals(packed: Sequence[tuple[str, int, int, float]], of: int, before: int, after: int) -> str:
    """Return a line on packed tensors, among so many, and the bytes of all before and after.

    Of each packed one its name, entries, bytes and relative error; the mean is over entries.
    """
    line = f"packed {len(packed)} of {of} tensors"
    if not packed:
        return line
    numel = sum(entries for _, entries, _, _ in packed)
    bits = 8 * sum(nbytes for _, _, nbytes, _ in packed) / numel
    mean = sum(entries * error for _, entries, _, error in packed) / numel
    worst = max(packed, key=lambda each: each[3])[0]
    return (
        f"{line}: {before / 1e6:.2f} MB -> {after / 1e6:.2f} MB, {bits:.2f} bits a weight; "
        f"mean error {mean:.1%}, worst {worst}"
    )


def pack(array: NDArray[Any], quantize: Affine, more: Sequence[int] = (), name: str = "") -> Packed:
    """Pack a tensor.

    Blocks do not cross rows, which are what a first dimension tells apart: where
    `quantize.block` does not divide a row, the largest divisor of it takes its place that is at
    least 16, a multiple of 8 if there is one. A tensor of one dimension may end in a short block.

    Parameters
    ----------
    array : numpy.ndarray
        float32, float16, bfloat16, or float64, which is rounded to float32 with a warning; any
        shape and strides, at least one entry.
    quantize : gradwire.quantize.Affine
        Bits, block and fit.
    more : sequence of int
        Further bits: none, or one number, at most 8 with ``quantize.bits``. They need
        ``fit="range"``.
    name : str
        Of the tensor, for errors.

    Raises
    ------
    TypeError
        The dtype is no float.
    ValueError
        There are no entries or too many, a magnitude is beyond 2**118, no block fits the rows, or
        further bits are not possible.
    NonFiniteError
        A value is NaN or infinite.
    """
    label = f"{name!r}" if name else "the tensor"
    if not isinstance(quantize, Affine):
        raise TypeError(f"quantize must be gradwire.quantize.Affine, got {quantize!r}")
    further = check_more(quantize, more)
    values = np.asarray(array)
    dtype = values.dtype.name
    if dtype == "float64":
        warnings.warn(f"{label} is float64, and is rounded to float32", stacklevel=2)
        dtype = "float32"
    if dtype not in DTYPES:
        raise TypeError(f"{label} must be of floats to be packed, got {dtype}")
    if not 0 < values.size <= MAX_NUMEL:
        raise ValueError(f"{label} must have 1 to {MAX_NUMEL} entries, got {values.size}")
    block = fitting_block(values.shape, quantize.block)
    if quantize.block is not None and block is None:
        raise ValueError(
            f"{label} has rows of {row_of(values.shape)}, which no block of {LEAST_BLOCK} to "
            f"{quantize.block} divides; give another block, or leave it as it is"
        )
    with np.errstate(over="ignore"):  # an infinite value is an error below
        floats = np.ascontiguousarray(values, np.float32)
    codec = Codec(
        sparsify=All(), quantize=dataclasses.replace(quantize, block=block), memory=NoMemory()
    )
    state = codec.init_state(values.size, name=name or None)
    try:
        frame = memoryview(codec.encode(floats.reshape(-1), state))
    except NonFiniteError as error:
        raise NonFiniteError(error.count, error.first, name or None) from None
    codes = _native.packed_further(frame, floats.reshape(-1), further) if further else None
    packed = Packed(frame, values.shape, dtype, codes, further)
    saturates = int.from_bytes(frame[_EXPONENT], "little", signed=True) == _LEAST_EXPONENT
    if saturates and float(np.abs(floats).max()) > LARGEST:
        raise ValueError(f"{label} has magnitudes beyond 2**118, which no grid reaches")
    return dataclasses.replace(packed, measured=packed.error(floats))


def check_more(quantize: Affine, more: Sequence[int]) -> int:
    """Return how many further bits there are to be."""
    if isinstance(more, int) or len(more) > 1:
        raise ValueError(f"more must be a sequence of at most one number of bits, got {more!r}")
    if not more:
        return 0
    (bits,) = more
    if isinstance(bits, bool) or not isinstance(bits, int) or bits < 1 or quantize.bits + bits > 8:
        raise ValueError(f"{quantize.bits} bits and {bits!r} further ones must be 2 to 8")
    if quantize.fit != "range" or quantize.rounding != "nearest":
        raise ValueError(
            f'further bits lie within the cells of a whole range: they need fit="range" and '
            f'rounding="nearest", got {quantize!r}'
        )
    return bits


def row_of(shape: tuple[int, ...]) -> int:
    """Return how many entries a row has: all, where there is no second dimension."""
    return math.prod(shape[1:]) if len(shape) > 1 else math.prod(shape)


def fitting_block(shape: tuple[int, ...], block: int | None) -> int | None:
    """Return the largest block up to one that divides a row, or None."""
    if block is None:
        return None
    row = row_of(shape)
    if len(shape) < 2 or row % block == 0 or row <= block:
        return min(block, row)
    divisors = [n for n in range(LEAST_BLOCK, block + 1) if row % n == 0]
    whole = [n for n in divisors if n % 8 == 0]
    return max(whole or divisors, default=None)
