"""Sums in few bits: against one addition after another, and the figures of the papers."""

import ml_dtypes
import numpy as np
import pytest

from gradwire.numerics import Float, chunked_sum

WIDE = Float(6, 9)


def uniform(seed, n=4096):
    """Uniform values of mean 1 and standard deviation 1."""
    return np.random.default_rng(seed).uniform(1 - 3**0.5, 1 + 3**0.5, n)


def one_by_one(x, chunk, format):
    """The definition: partial sums, and then their sum."""
    partial = []
    for at in range(0, len(x), chunk):
        total = 0.0
        for term in x[at : at + chunk]:
            total = float(format.round(total + float(term)))
        partial.append(total)
    return one_by_one(partial, len(partial), format) if len(partial) > 1 else partial[0]


@pytest.mark.parametrize("format", [WIDE, Float(5, 2), Float(2, 1), Float(4, 3), Float(8, 23)])
@pytest.mark.parametrize("chunk", [1, 7, 64, 120])
def test_it_adds_one_after_another(format, chunk):
    """In every way to vectorise: few and many columns, axes, and chunks that do not divide."""
    rng = np.random.default_rng(chunk)
    x = rng.standard_normal((120, 24)) * 10.0 ** rng.uniform(-3, 2, (120, 24))
    expected = np.array([one_by_one(column, chunk, format) for column in x.T], np.float32)
    signs = np.signbit(expected)
    for y, axis in ((x, 0), (np.ascontiguousarray(x.T), 1), (x.reshape(120, 3, 8), -3)):
        found = chunked_sum(y, chunk, format, axis=axis)
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found.reshape(-1), expected)
        np.testing.assert_array_equal(np.signbit(found).reshape(-1), signs)
    for column, total in zip(x.T[:4], expected, strict=False):
        np.testing.assert_array_equal(chunked_sum(column, chunk, format), total)


def test_more_columns_and_chunks_than_are_taken_together():
    x = np.random.default_rng(0).standard_normal((130, 5000)).astype(np.float32)
    found = chunked_sum(x, 64, axis=0)
    for at in (0, 4095, 4096, 4999):
        assert found[at] == chunked_sum(x[:, at].copy(), 64)
    flat = x.reshape(-1)
    whole = len(flat) // 64 * 64
    partial = [*chunked_sum(flat[:whole].reshape(-1, 64), axis=1).tolist()]
    partial.append(float(chunked_sum(flat[whole:], len(flat) - whole)))
    assert chunked_sum(flat) == chunked_sum(x) == chunked_sum(partial, len(partial))


@pytest.mark.parametrize("n", [16_384, 65_536])
def test_a_plain_sum_stalls_at_4096_and_chunks_do_not(n):
    x = uniform(0, n)
    assert chunked_sum(x, n) == 4096.0
    assert abs(chunked_sum(x, 64) - x.sum()) < 0.01 * n


def test_stochastic_rounding_does_not_stall_and_is_repeated():
    format = Float(6, 9, rounding="stochastic", seed=2)
    ones = np.ones(16_384)
    assert chunked_sum(ones, len(ones)) == 1024.0
    found = chunked_sum(ones, len(ones), format)
    assert abs(found - 16_384) < 1500
    assert found == chunked_sum(ones, len(ones), format)
    many = chunked_sum(np.ones((1024, 500)), 1024, Float(6, 6, rounding="stochastic"), axis=0)
    assert len(np.unique(many)) > 10
    assert abs(many.mean() - 1024) < 4 * many.std() / 500**0.5


def test_what_is_not_finite_and_what_overflows():
    small = Float(4, 3)
    assert np.isnan(chunked_sum([1.0, np.nan, 2.0], 3))
    assert np.isnan(chunked_sum([np.inf, -np.inf], 2))
    assert chunked_sum([np.inf, 1.0], 1) == np.inf
    for width in (1, 100):  # taken one by one, and together
        big = np.full((2, width), 240.0)
        assert (chunked_sum(big, 2, small, axis=0) == np.inf).all()
        assert (chunked_sum(-big, 1, small, axis=0) == -np.inf).all()
        assert (chunked_sum(big * 1e300, 2, axis=0) == np.inf).all()
        edge = np.stack([big[0], np.full(width, 7.0), np.full(width, -8.0)])
        assert (chunked_sum(edge, 3, small, axis=0) == 224.0).all()  # 247 is nearer to 240


def test_dtypes_and_shapes():
    x = uniform(3, 128)
    for dtype in (np.float16, np.float32, ml_dtypes.bfloat16):
        y = x.astype(dtype)
        assert chunked_sum(y) == chunked_sum(y.astype(np.float64))
        wide = np.repeat(y[:, None], 40, axis=1)
        assert (chunked_sum(wide, axis=0) == chunked_sum(y)).all()
    assert isinstance(chunked_sum(x), np.float32)
    assert chunked_sum(np.zeros((70, 0)), axis=0).shape == (0,)
    assert chunked_sum(np.zeros((2, 70, 3)), axis=1).shape == (2, 3)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (([1.0] * 9,), ValueError, "chunk must be at most 9, got 64"),
        (([1.0] * 9, 0), ValueError, "chunk must be at least 1, got 0"),
        (([], 1), ValueError, "chunk must be at most 0, got 1$"),
        (([1, 2], 1), TypeError, "x must be floats of at most 64 bits, got int64"),
    ],
)
def test_wrong_arguments_of_a_sum(given, error, message):
    with pytest.raises(error, match=message):
        chunked_sum(*given)
