"""Bits that sums need: the published formula term by term, and sums that are simulated."""

import math

import numpy as np
import pytest

from gradwire.numerics import Float, chunked_sum, mantissa_bits, sum_error, variance_retention

TABLE = {  # terms: bits of a plain sum, and in chunks of 64, with products of 5 bits
    16: (2,), 64: (4, 4), 256: (6, 5), 1024: (7, 6), 4096: (9, 8), 16384: (10, 9),
    65536: (12, 10), 262144: (13, 12),
}  # fmt: skip


def tails(x):
    return math.erfc(x / math.sqrt(2))


def retained(n, m, p):
    """The formula as it is printed, every term."""

    def cut(r):
        parts = (2**j * (2**j - 1) * (2 ** (j + 1) - 1) for j in range(1, r))
        return 2.0 ** (m - 3 * p) / 3 * sum(parts)

    k = kept = 0.0
    for i in range(2, n):
        if i > cut(p + 1):
            q = tails(2**m / math.sqrt(i)) * (1 - tails(2**m / math.sqrt(i - 1)))
            k, kept = k + q, kept + (i - cut(p + 1)) * q
    for r in range(2, p + 1):
        if n > cut(r):
            step = 2.0 ** (m - p + r)
            q = step * tails(step / 2 / math.sqrt(n)) * (1 - tails(step / math.sqrt(n)))
            k, kept = k + q, kept + (n - cut(r)) * q
    q = 1 - tails(2.0 ** (m - p + 1) / math.sqrt(n))
    return (kept + n * q) / ((k + q) * n)


def test_the_table():
    for n, bits in TABLE.items():
        chunks = (None, 64)[: len(bits)]
        assert tuple(mantissa_bits(n, 5, chunk) for chunk in chunks) == bits
    with pytest.raises(ValueError, match="chunk must be at most 16"):
        mantissa_bits(16, 5, 64)
    assert mantissa_bits(n=65536, product=5, chunk=64) == 10


@pytest.mark.parametrize("n", [2, 3, 5, 16, 255, 256, 257, 700, 5000])
def test_the_variance_kept_is_the_printed_sum(n):
    for m in (1, 2, 4, 7, 9, 12):
        for p in (1, 2, 5, 10):
            lost = 1 - retained(n, m, p)
            assert 1 - variance_retention(n, m, p) == pytest.approx(lost, rel=1e-5, abs=1e-9)


def test_chunks_are_a_sum_of_sums():
    first, second = variance_retention(64, 6, 5), variance_retention(64, 6, 6)
    assert variance_retention(4096, 6, 5, 64) == pytest.approx(first * second)
    assert variance_retention(4096, 6, 5, 4096) == variance_retention(4096, 6, 5)
    assert variance_retention(4096, 6, 5, 1) == variance_retention(4096, 6, 5)
    assert variance_retention(4095, 6, 5, 63) == pytest.approx(
        variance_retention(63, 6, 5) * variance_retention(65, 6, 6)
    )


def test_gradients_that_are_summed_in_their_own_dtype():
    for bits, terms in ((7, 1024), (10, 16384)):
        assert mantissa_bits(terms, bits) <= bits < mantissa_bits(2 * terms, bits)


def test_any_number_of_terms_is_answered():
    assert variance_retention(1, 1, 1) == 1.0
    assert mantissa_bits(1, 64) == 1
    most = 2**63 - 1
    for product in (1, 5, 64):
        needed = [mantissa_bits(2**power, product) for power in range(63)]
        assert needed == sorted(needed)
        assert needed[-1] <= mantissa_bits(most, product) < 64
    for chunk in (1, 64, 2**31, most):
        assert 0.0 <= variance_retention(most, 10, 5, chunk) <= 1.0
        assert 1 < mantissa_bits(most, 5, chunk) < 64
    kept = [variance_retention(10**6, bits, 5) for bits in range(1, 65)]
    assert kept[0] < 0.5
    assert kept[-1] == 1.0


@pytest.mark.parametrize("format", [Float(8, 7), Float(5, 10)], ids=["bfloat16", "float16"])
@pytest.mark.parametrize("n", [8, 512, pytest.param(4096, marks=pytest.mark.full)])
def test_the_error_of_a_sum_is_the_formula_within_40_percent(format, n):
    terms = format.round(np.random.default_rng(n).standard_normal((n, 4000)))
    found = chunked_sum(terms, n, format, axis=0)
    error = ((found - terms.sum(axis=0, dtype=np.float64)) ** 2).mean() / n
    assert error == pytest.approx(sum_error(n, format.mantissa), rel=0.4)


def truncated_sum(terms, mantissa):
    """Sums along the first axis whose low bits are cut off after every addition."""
    total = np.zeros(terms.shape[1:], np.float32)
    mask = np.uint32(2**32 - 2 ** (23 - mantissa))
    for term in terms:
        total = ((total + term).view(np.uint32) & mask).view(np.float32)
    return total


SIMULATED = {  # bits: variance kept by the formula, rounded to nearest, and truncated; error
    5: (0.56, 0.84, 0.012, 0.083),
    6: (0.70, 0.97, 0.025, 0.022),
    7: (0.92, 0.99, 0.053, 0.0054),
    8: (1.00, 1.00, 0.115, 0.0014),
    9: (1.00, 1.00, 0.25, 0.00037),
}
"""Of 4 096 terms of 5 bits: docs/numerics.md has what follows."""


@pytest.mark.parametrize(
    "bits", [7, *(pytest.param(bits, marks=pytest.mark.full) for bits in (5, 6, 8, 9))]
)
def test_the_formula_is_pessimistic_for_nearest_and_wrong_for_truncation(bits):
    terms = Float(8, 5).round(np.random.default_rng(0).standard_normal((4096, 4000)))
    exact = terms.sum(axis=0, dtype=np.float64)
    nearest = chunked_sum(terms, 4096, Float(8, bits), axis=0)
    formula, kept, truncated, error = SIMULATED[bits]
    assert variance_retention(4096, bits, 5) == pytest.approx(formula, abs=0.006)
    assert nearest.var() / exact.var() == pytest.approx(kept, abs=0.012)
    assert truncated_sum(terms, bits).var() / exact.var() == pytest.approx(truncated, rel=0.1)
    assert ((nearest - exact) ** 2).mean() / 4096 == pytest.approx(error, rel=0.1)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"n": 0}, ValueError, "n must be at least 1, got 0"),
        ({"mantissa": 0}, ValueError, "mantissa must be at least 1, got 0"),
        ({"mantissa": 65}, ValueError, "mantissa must be at most 64, got 65"),
        ({"product": 0}, ValueError, "product must be at least 1, got 0"),
        ({"chunk": 0}, ValueError, "chunk must be at least 1, got 0"),
        ({"chunk": 101}, ValueError, "chunk must be at most 100, got 101"),
    ],
)
def test_wrong_arguments(given, error, message):
    options = {"n": 100, "mantissa": 7, "product": 5, **given}
    with pytest.raises(error, match=message):
        variance_retention(**options)
    for function, without in ((mantissa_bits, {"mantissa"}), (sum_error, {"product", "chunk"})):
        if not without & given.keys():
            with pytest.raises(error, match=message):
                function(**{key: options[key] for key in options.keys() - without})
