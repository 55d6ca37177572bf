"""Reductions and scans over warps, blocks and grids, against numpy."""

import numpy as np
import pytest

from tests.csrc.emulated.kernels import Kernels

THREADS = 128
LENGTHS = (1, 31, 32, 33, THREADS - 1, THREADS, THREADS + 1, 40 * THREADS + 7)


@pytest.mark.parametrize("length", LENGTHS)
def test_a_block_reduces_its_values(
    kernels: Kernels, rng: np.random.Generator, length: int
) -> None:
    values = rng.integers(0, 2**32, length, dtype=np.uint32)
    blocks = [values[at : at + THREADS] for at in range(0, length, THREADS)]
    expected = [[b.sum(dtype=np.uint32), b.max(), b.min()] for b in blocks]
    out = np.zeros((len(blocks), 3), np.uint32)
    for _ in kernels.orders():
        kernels.call("gradwire_test_reduce", values, length, out)
        np.testing.assert_array_equal(out, np.array(expected, np.uint32))


def test_a_sum_of_floats_has_one_tree_and_all_threads_get_its_bits(
    kernels: Kernels, rng: np.random.Generator
) -> None:
    values = rng.standard_normal(THREADS).astype(np.float32)
    warps = values.reshape(4, 32)
    for half in (16, 8, 4, 2, 1):
        warps = warps[:, :half] + warps[:, half : 2 * half]
    expected = np.float32(0)
    expected = warps[0, 0]
    for warp in warps[1:, 0]:
        expected = np.float32(expected + warp)
    out = np.zeros(THREADS, np.float32)
    for _ in kernels.orders():
        kernels.call("gradwire_test_reduce_floats", values, out)
        np.testing.assert_array_equal(out.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("lengths", [(1,), (5000,), (1, THREADS, 0, 7, 3000, 0, THREADS + 1)])
def test_the_chains_of_a_launch_compact_in_order(
    kernels: Kernels, rng: np.random.Generator, lengths: tuple[int, ...]
) -> None:
    values = rng.integers(0, 2**32, sum(lengths), dtype=np.uint32)
    starts = np.cumsum([0, *lengths], dtype=np.uint64)
    tiles = [-(-length // THREADS) for length in lengths]
    first_tile = np.cumsum([0, *tiles], dtype=np.uint32)
    for _ in kernels.orders():
        out, counts = np.zeros_like(values), np.zeros(len(lengths), np.uint64)
        kernels.call(
            "gradwire_test_compact",
            *(values, first_tile, starts, len(lengths), sum(tiles)),
            *(np.zeros(1, np.uint32), np.zeros(sum(tiles), np.uint64), out, counts),
        )
        for start, length, count in zip(starts, lengths, counts, strict=False):
            part = values[int(start) :][:length]
            odd = part[part % 2 == 1]
            assert count == len(odd)
            np.testing.assert_array_equal(out[int(start) :][: len(odd)], odd)
