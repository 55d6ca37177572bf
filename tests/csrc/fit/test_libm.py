"""Logarithms and the like have the bits that the crate gives which the core takes them from."""

from pathlib import Path

import numpy as np
import pytest

from tests.csrc.emulated.kernels import Kernels

FUNCTIONS = ("log", "exp", "expm1", "pow")
TABLE = Path(__file__).with_name("libm.txt")
"""Name, arguments and result, as bits: what version 0.2.16 of the crate computes."""


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_have_the_bits_of_the_core(kernels: Kernels, name: str) -> None:
    rows = [line.split()[1:] for line in TABLE.read_text().splitlines() if line.split()[0] == name]
    assert len(rows) > 50
    words = np.array([[int(word, 16) for word in row] for row in rows], np.uint64)
    x, y, expected = (np.ascontiguousarray(column) for column in words.T)
    out = np.zeros(len(rows))
    kernels.call("gradwire_test_libm", FUNCTIONS.index(name), x, y, out, len(rows))
    found = out.view(np.uint64)
    nan = np.isnan(expected.view(np.float64))
    np.testing.assert_array_equal(np.isnan(out), nan)
    np.testing.assert_array_equal(found[~nan], expected[~nan])
