"""Floats of any width: bit for bit as ml_dtypes and numpy have them, and as IEEE 754 says."""

import pickle
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from gradwire.numerics import Float

PEERS = {
    Float(3, 4): ml_dtypes.float8_e3m4,
    Float(4, 3): ml_dtypes.float8_e4m3,
    Float(5, 2): ml_dtypes.float8_e5m2,
    Float(5, 10): np.float16,
    Float(8, 7): ml_dtypes.bfloat16,
    Float(8, 23): np.float32,
}
"""All formats with infinities that another implementation has."""

of_peers = pytest.mark.parametrize(
    ("format", "peer"), PEERS.items(), ids=[f"{each.exponent}-{each.mantissa}" for each in PEERS]
)


def check(format, peer, x):
    """Compare codes and values of float32; NaN has its sign, and one code for each."""
    with np.errstate(over="ignore", invalid="ignore"):
        expected = x.astype(peer)
    codes, nan = format.encode(x), np.isnan(x)
    assert codes.dtype == format.dtype
    np.testing.assert_array_equal(codes[~nan], expected.view(format.dtype)[~nan])
    quiet = ((1 << format.exponent + 1) - 1) << format.mantissa - 1
    signs = np.signbit(x[nan]).astype(np.uint32) << format.bits - 1
    np.testing.assert_array_equal(codes[nan], signs | quiet)
    rounded = format.round(x)
    assert rounded.dtype == np.float32
    same = rounded.view(np.uint32) == expected.astype(np.float32).view(np.uint32)
    assert (same | nan).all()
    assert np.isnan(rounded[nan]).all()


@of_peers
def test_all_codes_are_read_and_come_back(format, peer):
    count = min(1 << format.bits, 1 << 20)
    codes = np.linspace(0, (1 << format.bits) - 1, count).astype(format.dtype)
    values, expected = format.decode(codes), codes.view(peer).astype(np.float32)
    nan = np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(values), nan)
    np.testing.assert_array_equal(
        values[~nan].view(np.uint32), expected[~nan].view(np.uint32), strict=True
    )
    np.testing.assert_array_equal(format.encode(values)[~nan], codes[~nan])
    np.testing.assert_array_equal(format.round(values)[~nan], values[~nan])


@of_peers
def test_ties_and_their_neighbours_round_as_there(format, peer):
    """The middle between any two neighbouring numbers, and the float32 before and behind it."""
    codes = np.arange(min(1 << format.bits - 1, 1 << 16), dtype=format.dtype)
    values = format.decode(codes).astype(np.float64)
    values = values[np.isfinite(values)]
    values = np.append(values, 2.0 * values[-1] - values[-2])  # where infinity begins
    middle = ((values[1:] + values[:-1]) / 2).astype(np.float32)
    near = [middle, np.nextafter(middle, np.float32(0)), np.nextafter(middle, np.float32(np.inf))]
    x = np.concatenate(near)
    check(format, peer, np.concatenate([x, -x]))


@of_peers
def test_samples_of_all_float32_round_as_there(format, peer):
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2**32, 1_000_000, dtype=np.uint64).astype(np.uint32)
    # Half of them near the values where rounding decides: few bits of mantissa, one more or less.
    coarse = bits[500_000:] & np.uint32(0xFFF80000)
    bits[500_000:] = coarse + rng.integers(-1, 2, coarse.size).astype(np.uint32)
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan, 2.0**-149, -(2.0**-149)]
    check(format, peer, np.concatenate([bits.view(np.float32), np.array(special, np.float32)]))


@pytest.mark.parametrize("exponent", [2, 3, 6, 8])
@pytest.mark.parametrize("mantissa", [1, 3, 9])
def test_every_float64_has_the_nearest_number_as_fractions_find_it(exponent, mantissa):
    format = Float(exponent, mantissa)
    infinity = (2**exponent - 1) << mantissa
    numbers = format.decode(np.arange(infinity, dtype=format.dtype)).tolist()
    assert numbers == sorted(numbers)
    assert (numbers[1], numbers[-1]) == (format.smallest, format.largest)
    numbers.append(2 * numbers[-1] - numbers[-2])  # infinity takes its place
    rng = np.random.default_rng(exponent)
    x = 10.0 ** rng.uniform(np.log10(format.smallest) - 1, np.log10(numbers[-1]), 200)
    at = np.append(rng.integers(0, infinity, 50), [0, infinity - 1])
    ties = (np.array(numbers)[at] + np.array(numbers)[at + 1]) / 2
    x = np.concatenate([x, ties, np.nextafter(ties, 0), np.nextafter(ties, np.inf)])
    for value, code in zip(x.tolist(), format.encode(x).tolist(), strict=True):
        above = int(np.searchsorted(numbers, value))
        apart = [
            (abs(Fraction(numbers[each]) - Fraction(value)), each % 2, each)
            for each in (above - 1, above)
        ]
        assert code == min(apart)[2]


def test_the_formats_of_the_paper():
    fp8, fp16 = Float(5, 2), Float(6, 9)
    assert (fp8.bias, fp8.largest, fp8.smallest, fp8.dtype) == (15, 57344.0, 2.0**-16, np.uint8)
    assert (fp16.bias, fp16.largest, fp16.smallest) == (31, 2.0**32 - 2.0**22, 2.0**-39)
    assert (fp16.bits, fp16.dtype) == (16, np.uint16)
    assert Float(8, 23).dtype == np.uint32


def test_shapes_and_dtypes():
    format = Float(5, 2)
    assert isinstance(format.round(1.3), np.float32)
    assert format.round(1.3) == 1.25
    assert isinstance(format.encode(-0.0), np.uint8)
    assert format.encode(-0.0) == 0x80
    assert np.signbit(format.decode(np.uint8(0x80)))
    assert format.round(np.zeros((2, 0, 3))).shape == format.encode(np.zeros((2, 0, 3))).shape
    x = np.linspace(-3, 3, 24).reshape(2, 3, 4)
    for dtype in (np.float16, np.float32, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn):
        given = x.astype(dtype)
        expected = given.astype(np.float32).astype(ml_dtypes.float8_e5m2).astype(np.float32)
        np.testing.assert_array_equal(format.round(given), expected, strict=True)
        np.testing.assert_array_equal(format.round(given.T), expected.T, strict=True)
        np.testing.assert_array_equal(format.decode(format.encode(given)), expected, strict=True)
    assert pickle.loads(pickle.dumps(format)) == format
    assert Float(np.int64(5), 2) == format


@pytest.mark.parametrize("format", [Float(6, 9), Float(5, 2), Float(2, 1), Float(8, 7)])
def test_stochastic_rounding_is_to_neighbours_and_without_bias(format):
    nearest = format
    format = Float(format.exponent, format.mantissa, rounding="stochastic", seed=7)
    rng = np.random.default_rng(1)
    x = rng.uniform(-format.largest, format.largest, 40)
    x[:20] = rng.uniform(-2, 2, 20) * 2.0 ** (1 - format.bias)  # subnormals and above
    drawn = format.round(np.tile(x, (20_000, 1))).astype(np.float64)
    unit = drawn.max(axis=0) - drawn.min(axis=0)
    assert (np.abs(drawn - x) < unit).all()
    assert (np.array([len(np.unique(each)) for each in drawn.T]) == 2).all()
    below, above = nearest.encode(drawn.min(axis=0)), nearest.encode(drawn.max(axis=0))
    assert (np.abs(below.astype(int) - above.astype(int)) == 1).all()
    np.testing.assert_allclose(drawn.mean(axis=0), x, rtol=0, atol=5 * unit.max() / 2 / 20_000**0.5)
    share = (x - drawn.min(axis=0)) / unit
    np.testing.assert_allclose((drawn > x).mean(axis=0), share, rtol=0, atol=5 / 2 / 20_000**0.5)


def test_stochastic_rounding_keeps_what_is_exact_and_draws_from_its_seed():
    format = Float(5, 2, rounding="stochastic")
    codes = np.arange(256, dtype=np.uint8)
    values = format.decode(codes)
    finite = np.isfinite(values)
    np.testing.assert_array_equal(format.encode(values)[finite], codes[finite])
    special = np.array([np.inf, -np.inf, 1e30, -1e30])
    np.testing.assert_array_equal(format.round(special), np.copysign(np.inf, special))
    assert np.isnan(format.round(np.nan))
    x = np.random.default_rng(0).standard_normal(1000)
    np.testing.assert_array_equal(format.round(x), format.round(x))
    other = Float(5, 2, rounding="stochastic", seed=1)
    assert (format.round(x) != other.round(x)).any()
    small = format.round(np.full(1000, -(2.0**-18)))
    assert set(small.tolist()) == {0.0, -(2.0**-16)}
    assert np.signbit(small).all()


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ((9, 3), ValueError, "exponent must be at most 8, got 9"),
        ((1, 3), ValueError, "exponent must be at least 2, got 1"),
        ((8, 24), ValueError, "mantissa must be at most 23, got 24"),
        ((8, 0), ValueError, "mantissa must be at least 1, got 0"),
    ],
)
def test_formats_that_are_none_are_refused(given, error, message):
    with pytest.raises(error, match=message):
        Float(*given)


@pytest.mark.parametrize(
    "x", [[1, 2], [True], [1j], ["1"], [None], np.zeros(2, "M8[s]"), np.zeros(2, np.longdouble)]
)
def test_what_is_no_float_is_refused(x):
    with pytest.raises(TypeError, match="x must be floats of at most 64 bits, got "):
        Float(5, 2).round(x)
    with pytest.raises(TypeError, match="x must be floats of at most 64 bits, got "):
        Float(5, 2).encode(x)


def test_codes_that_are_none_are_refused():
    with pytest.raises(TypeError, match="codes must be unsigned integers, such as uint8, got"):
        Float(5, 2).decode([1.0])
    with pytest.raises(TypeError, match="such as uint16, got int64"):
        Float(6, 9).decode(np.array([1]))
    with pytest.raises(ValueError, match="codes must have at most 8 bits, got 0x100"):
        Float(5, 2).decode(np.array([256], np.uint16))
    assert Float(5, 2).decode(np.array([60], np.uint64)) == 1.0
