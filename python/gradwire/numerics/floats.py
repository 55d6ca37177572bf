"""Binary floating-point numbers of any width up to that of float32, and sums in them."""

import dataclasses
import math
from collections.abc import Callable
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from gradwire import _validate
from gradwire._validate import Check, Checked, Seed64

Rounding = Literal["nearest", "stochastic"]

_PIECE = 1 << 14  # values that are worked on together, which stay in the cache
_WIDE = 1 << 12  # sums that are taken together, likewise
_NARROW = 32  # so few are taken one by one, by plain floats
_PLAIN = 1 << 16  # terms of those that are made plain floats together


@dataclasses.dataclass(frozen=True)
class Float(Checked):
    """A float format with a sign bit, exponent and mantissa, as in IEEE 754.

    The bias is ``2**(exponent - 1) - 1``. The lowest exponent is for subnormals, the highest for
    infinities and NaN. ``Float(5, 10)`` is float16, ``Float(8, 7)`` bfloat16, ``Float(8, 23)``
    float32 and ``Float(5, 2)`` the E5M2 of 8 bits; E4M3 with 448 as its largest number
    (`gradwire.quantize.Float8`) has no infinities and is not among them.

    Parameters
    ----------
    exponent : int
        Bits of the exponent, 2 to 8.
    mantissa : int
        Bits of the mantissa without the leading one, 1 to 23.
    rounding : {"nearest", "stochastic"}
        To the nearest number, ties to even; or randomly to one of the two neighbours, without bias.
        Beyond the largest number the next neighbour is infinity.
    seed : int
        Seed of stochastic rounding, 0 to 2**64 - 1. Each call starts from the seed: the same call
        gives the same result.

    Raises
    ------
    TypeError, ValueError
        An argument is of another type, or out of range.

    References
    ----------
    Wang, Choi, Brand, Chen, Gopalakrishnan, "Training Deep Neural Networks with 8-bit Floating
    Point Numbers", NeurIPS 2018: ``Float(5, 2)`` for tensors and ``Float(6, 9)`` for sums, with
    stochastic rounding where weights are updated.
    """

    exponent: Annotated[int, Check(_validate.integer, low=2, high=8)]
    mantissa: Annotated[int, Check(_validate.integer, low=1, high=23)]
    rounding: Rounding = dataclasses.field(default="nearest", kw_only=True)
    seed: Seed64 = dataclasses.field(default=0, kw_only=True)

    @property
    def bits(self) -> int:
        """Bits of a number."""
        return 1 + self.exponent + self.mantissa

    @property
    def bias(self) -> int:
        """The offset that is added to the exponent of a number to store it."""
        return int(2 ** (self.exponent - 1) - 1)

    @property
    def largest(self) -> float:
        """The largest finite number."""
        return (2.0 - 2.0**-self.mantissa) * 2.0**self.bias

    @property
    def smallest(self) -> float:
        """The smallest number above 0, which is subnormal."""
        return 2.0 ** (1 - self.bias - self.mantissa)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The unsigned integers that hold a number's bits."""
        return np.dtype(np.uint8 if self.bits <= 8 else np.uint16 if self.bits <= 16 else np.uint32)

    def round(self, x: ArrayLike) -> Any:
        """Round values to numbers of this format, in about ten passes over x.

        Parameters
        ----------
        x : array-like
            Of floats of up to 64 bits, others are a TypeError; of any shape. NaN stays NaN, and -0
            keeps its sign.

        Returns
        -------
        numpy.ndarray or numpy.float32
            float32, which holds each of them exactly, of the shape of x.
        """
        random = _generator(self)
        return _by_pieces(_floats("x", x), np.float32, lambda piece: _round(self, piece, random))

    def encode(self, x: ArrayLike) -> Any:
        """Round values as `round`, and return the bits of the results.

        Returns
        -------
        numpy.ndarray or numpy scalar
            Of `dtype`: from the top, sign, exponent and mantissa in the lowest `bits`. NaN has the
            sign it had and the first bit of the mantissa.
        """
        random = _generator(self)
        return _by_pieces(_floats("x", x), self.dtype, lambda piece: self._codes_of(piece, random))

    def _codes_of(self, x: NDArray[Any], random: np.random.Generator | None) -> NDArray[np.uint64]:
        numbers = _round(self, x, random)
        scale = _binades(self, numbers)
        special = ~np.isfinite(numbers)
        units = np.abs(np.where(special, 0.0, numbers)) / (scale * 2.0**-self.mantissa)
        # The leading one of a normal number counts for the first exponent, and so does a carry.
        above = (scale.view(np.uint64) >> np.uint64(52)) - np.uint64(1024 - self.bias)
        codes: NDArray[np.uint64] = units.astype(np.uint64) + (above << np.uint64(self.mantissa))
        infinity = (2**self.exponent - 1) << self.mantissa
        codes[special] = infinity
        codes[np.isnan(numbers)] = infinity | 1 << self.mantissa - 1
        codes |= np.signbit(x).astype(np.uint64) << np.uint64(self.bits - 1)
        return codes

    def decode(self, codes: ArrayLike) -> Any:
        """Return the numbers of these bits, exactly.

        Parameters
        ----------
        codes : array-like
            Of unsigned integers, others are a TypeError; one of more than `bits` is a ValueError.

        Returns
        -------
        numpy.ndarray or numpy.float32
            float32, of the shape of codes.
        """
        array = np.asarray(codes)
        _validate.require(
            array.dtype.kind == "u",
            "codes must be unsigned integers, such as {}, got {}",
            *(self.dtype, array.dtype),
            kind=TypeError,
        )
        most = int(array.max(initial=0))
        _validate.require(
            not most >> self.bits, "codes must have at most {} bits, got {:#x}", self.bits, most
        )
        return _by_pieces(array, np.float32, self._numbers_of)

    def _numbers_of(self, codes: NDArray[np.unsignedinteger[Any]]) -> NDArray[np.float64]:
        bits = codes.astype(np.int64)
        exponent = (bits >> self.mantissa) & (2**self.exponent - 1)
        fraction = bits & (2**self.mantissa - 1)
        normal = exponent > 0
        units = (fraction + (normal * 2**self.mantissa)).astype(np.float64)
        x = np.ldexp(units, exponent - normal + (1 - self.bias - self.mantissa))
        special = np.where(fraction > 0, np.nan, np.inf)
        x = np.where(exponent < 2**self.exponent - 1, x, special)
        signed: NDArray[np.float64] = np.copysign(x, 0.5 - (bits >> (self.bits - 1)))
        return signed


def chunked_sum(
    x: ArrayLike,
    chunk: int = 64,
    format: Float = Float(6, 9),
    *,
    axis: int | None = None,
) -> Any:
    """Return sums of partial sums, each rounded to a format after every addition.

    Terms are added one by one, from the first; partial sums likewise. Each addition is done in
    float64, exactly or nearly so, and rounded once. A chunk of all terms is a plain sum. Partial
    sums lose small terms too, only later. Additions are vectorised over chunks and over the other
    axes: about 20 ns per term. For few, long sums it is 200 ns, and 40 us with stochastic rounding.
    Needs memory for float64 partial sums, some megabytes, and a copy of x if `axis` is neither the
    first nor the last one of a contiguous array.

    Parameters
    ----------
    x : array-like
        Of floats of up to 64 bits. They are not rounded before they are added.
    chunk : int
        Terms of a partial sum, 1 to their number; the last one may have fewer.
    format : Float
        Format of sums. With stochastic rounding, all sums of a call draw from its seed.
    axis : int, optional
        Axis of the sums. None sums all entries, in C order.

    Returns
    -------
    numpy.ndarray or numpy.float32
        float32, of the shape of x without the axis. A sum that is too large is infinite.

    Raises
    ------
    TypeError, ValueError
        x is not of floats; there are no terms, or fewer than `chunk`; or x has no such axis.

    References
    ----------
    Wang, Choi, Brand, Chen, Gopalakrishnan, "Training Deep Neural Networks with 8-bit Floating
    Point Numbers", NeurIPS 2018: chunk-based accumulation, with chunks of 64 in ``Float(6, 9)``.
    """
    array = _floats("x", x)
    if axis is None:
        array, axis = array.reshape(-1), 0
    axis = _validate.integer("axis", axis, low=-array.ndim, high=array.ndim - 1)
    terms = np.moveaxis(array, axis, 0)
    n, shape = terms.shape[0], terms.shape[1:]
    chunk = _validate.integer("chunk", chunk, low=1, high=n)
    columns, random = terms.reshape(n, -1), _generator(format)
    partial = np.empty((-(-n // chunk), columns.shape[1]))
    whole = n // chunk
    for at in range(0, columns.shape[1], _WIDE):
        some = columns[:, at : at + _WIDE]
        rows = max(1, _WIDE // some.shape[1])
        for row in range(0, whole, rows):
            end = min(row + rows, whole)
            part = some[row * chunk : end * chunk].reshape(end - row, chunk, -1)
            partial[row:end, at : at + _WIDE] = _sum(part.swapaxes(0, 1), format, random)
        if whole < len(partial):
            partial[whole, at : at + _WIDE] = _sum(some[whole * chunk :], format, random)
    return _sum(partial, format, random).astype(np.float32).reshape(shape)[()]


def _sum(
    terms: NDArray[Any], format: Float, random: np.random.Generator | None
) -> NDArray[np.float64]:
    """Return sums along the first axis, of float64, rounded after every addition."""
    total = np.zeros(terms.shape[1:])
    with np.errstate(invalid="ignore"):  # infinities of both signs, and NaN that signals
        if total.size <= _NARROW and random is None:
            for at in np.ndindex(total.shape):
                total[at] = _sum_one(terms[:, *at], format)
            return total
        for term in terms:
            total = _round(format, total + term.astype(np.float64), random)
    return total


def _sum_one(terms: NDArray[Any], format: Float) -> float:
    """Return one sum as `_sum` does, rounded to nearest, at 0.2 microseconds a term.

    Within a binade, adding and subtracting a number whose last bit is the unit there rounds to it.
    """
    total = low = high = magic = 0.0
    largest = format.largest
    for at in range(0, len(terms), _PLAIN):
        for term in terms[at : at + _PLAIN].astype(np.float64).tolist():
            exact = total + term
            if not low <= abs(exact) < high:
                low, high, unit = _binade(format, exact)
                magic = 1.5 * 2.0**52 * unit
            total = math.copysign((exact + magic) - magic, exact)
            if total > largest or total < -largest:
                total = math.copysign(math.inf, total)
    return total


def _generator(format: Float) -> np.random.Generator | None:
    """Return the random generator for `rounded`: None if rounding to nearest."""
    return None if format.rounding == "nearest" else np.random.default_rng(format.seed)


def _round(
    format: Float, x: NDArray[Any], random: np.random.Generator | None
) -> NDArray[np.float64]:
    with np.errstate(over="ignore", invalid="ignore"):  # beyond float64, and NaN that signals
        x = x.astype(np.float64)
        unit = _binades(format, x)
        unit *= 2.0**-format.mantissa
        scaled = x / unit  # exact: a power of two
        if random is None:
            units = np.rint(scaled)
        else:
            units = np.trunc(scaled)
            units += np.copysign(random.random(x.shape) < np.abs(scaled - units), x)
        units *= unit
    beyond = np.abs(units) > format.largest
    if beyond.any():
        units[beyond] = np.copysign(np.inf, units[beyond])
    return units


def _binade(format: Float, x: float) -> tuple[float, float, float]:
    """Return the bounds of the magnitudes with the spacing of numbers near x, and the spacing."""
    first = 1 - format.bias
    exponent = min(max(math.frexp(x)[1] - 1, first), 1 + format.bias)
    low = 0.0 if exponent == first else 2.0**exponent
    return low, 2.0 ** (exponent + 1), 2.0 ** (exponent - format.mantissa)


def _binades(format: Float, x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the power of two below each magnitude, at least that of the subnormals.

    At most one above the largest number: larger magnitudes only have to stay above it.
    """
    powers = (x.view(np.uint64) & np.uint64(0x7FF0_0000_0000_0000)).view(np.float64)
    return np.clip(powers, 2.0 ** (1 - format.bias), 2.0 ** (1 + format.bias))


def _floats(name: str, value: ArrayLike) -> NDArray[Any]:
    """Return an array of floats of at most 64 bits, unchanged; raise a TypeError for others."""
    array = np.asarray(value)
    # By what can be cast: ml_dtypes' bfloat16 and others are of kind "V".
    if array.dtype.kind in "biuOSUMm" or not np.can_cast(array.dtype, np.float64, "safe"):
        raise TypeError(f"{name} must be floats of at most 64 bits, got {array.dtype}")
    return array


def _by_pieces(
    array: NDArray[Any], dtype: DTypeLike, function: Callable[[NDArray[Any]], NDArray[Any]]
) -> Any:
    flat, numbers = array.reshape(-1), np.empty(array.size, dtype)
    for at in range(0, flat.size, _PIECE):
        numbers[at : at + _PIECE] = function(flat[at : at + _PIECE])
    return numbers.reshape(array.shape)[()]
