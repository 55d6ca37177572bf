"""Orthonormal columns: the bits of a plain loop, whatever the matrix."""

import math
from fractions import Fraction

import numpy as np
import pytest

from gradwire._orthonormal import orthonormalize


def total(numbers: list[float]) -> float:
    """The second half is added to the first, until one number is left."""
    while len(numbers) > 1:
        half = (len(numbers) + 1) // 2
        more = numbers[half:] + [None] * (len(numbers) % 2)
        numbers = [a if b is None else a + b for a, b in zip(numbers[:half], more, strict=True)]
    return numbers[0]


def single(number: float) -> float:
    return float(np.float32(number))


def plain(columns: np.ndarray) -> np.ndarray:
    """Gram-Schmidt one number after the other; Python rounds every operation."""
    made = [[float(value) for value in column] for column in columns]
    for at, column in enumerate(made):
        dots = [total([a * b for a, b in zip(column, each, strict=True)]) for each in made[at:]]
        length = math.sqrt(dots[0]) + 1e-8
        column[:] = [single(value / length) for value in column]
        for dot, rest in zip(dots[1:], made[at + 1 :], strict=True):
            share = dot / length
            rest[:] = [single(b - share * a) for a, b in zip(column, rest, strict=True)]
    return np.array(made, np.float32)


@pytest.mark.parametrize("rank", [1, 2, 3, 5])
@pytest.mark.parametrize("rows", [5, 6, 7, 16, 31, 33, 100, 129, 1000])
def test_every_bit_is_that_of_a_plain_loop(rank, rows):
    draw = np.random.default_rng([rank, rows])
    columns = (draw.standard_normal((rank, rows)) * draw.exponential(size=rows)).astype(np.float32)
    expected = plain(columns)
    orthonormalize(columns)
    assert columns.tobytes() == expected.tobytes()


@pytest.mark.parametrize("scale", [0.1, 1.0, 1e30])
def test_columns_are_orthonormal_and_span_the_same(scale):
    given = (scale * np.random.default_rng(1).standard_normal((4, 300))).astype(np.float32)
    columns = given.copy()
    orthonormalize(columns)
    basis = columns.astype(np.float64)
    np.testing.assert_allclose(basis @ basis.T, np.eye(4), atol=1e-6)
    inside = (given.astype(np.float64) @ basis.T) @ basis
    np.testing.assert_allclose(inside, given, atol=1e-5 * scale)


def test_a_column_of_zeros_stays_zero():
    columns = np.random.default_rng(2).standard_normal((3, 40)).astype(np.float32)
    columns[1] = 0
    orthonormalize(columns)
    assert not columns[1].any()
    basis = columns.astype(np.float64)
    np.testing.assert_allclose(basis @ basis.T, np.diag([1, 0, 1]), atol=1e-6)


def test_a_dependent_column_is_at_most_one_long():
    columns = np.random.default_rng(3).standard_normal((3, 40)).astype(np.float32)
    columns[1] = columns[0] / 3
    columns[2] = 2 * columns[0]
    orthonormalize(columns)
    assert np.isfinite(columns).all()
    assert np.linalg.norm(columns[0]) == pytest.approx(1, abs=1e-6)
    assert (np.linalg.norm(columns[1:], axis=1) < 1 + 1e-6).all()


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, -np.nan])
def test_what_is_not_finite_spreads_and_nan_has_one_form(value):
    columns = np.random.default_rng(4).standard_normal((2, 40)).astype(np.float32)
    columns[0, 7] = value
    orthonormalize(columns)  # no warning either
    assert np.isnan(columns[0, 7])
    assert np.isnan(columns[1]).all()
    found = np.unique(columns.view(np.uint32)[np.isnan(columns)])
    assert found.tolist() == [np.float32(np.nan).view(np.uint32)]


def test_products_are_exact_before_they_are_added():
    """A unit of the last place in float32 is seen: 1 + 2**-23, squared."""
    one = 1 + 2**-23
    columns = np.array([[one, 0.0]], np.float32)
    orthonormalize(columns)
    expected = Fraction(one) / (Fraction(one) + Fraction(1e-8))
    assert columns[0, 0] == np.float32(float(expected))
