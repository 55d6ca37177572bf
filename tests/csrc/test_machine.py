"""The machine that runs the kernels: its words are CUDA's, and a kernel's mistake is told."""

import numpy as np
import pytest

from tests.csrc.emulated.kernels import Kernels, LaunchError


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ("missed_barrier", r"thread 5,0,0 of block .*: has ended"),
        ("two_barriers", r"comes to __syncthreads at machine.cu:\d+, while .* waits in the one at"),
    ],
)
def test_a_missed_barrier_is_an_error_and_the_next_launch_works(
    kernels: Kernels, entry: str, says: str
) -> None:
    for _ in kernels.orders():
        with pytest.raises(LaunchError, match=says):
            kernels.call(f"gradwire_test_{entry}")
        out = np.zeros(100, np.uint8)
        kernels.call("gradwire_test_write", out, 100)
        assert out.all()


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ("missed_shuffle", r"waits in __shfl_sync of lanes ffffffff at machine.cu"),
        ("two_words", r"comes to __(ballot|shfl)_sync .* while .* waits in __(ballot|shfl)_sync"),
    ],
)
def test_lanes_that_do_not_meet_are_an_error(kernels: Kernels, entry: str, says: str) -> None:
    for _ in kernels.orders():
        with pytest.raises(LaunchError, match=says):
            kernels.call(f"gradwire_test_{entry}", np.zeros(32, np.uint32))


def test_waiting_for_a_block_that_has_not_started_is_an_error(kernels: Kernels) -> None:
    flag = np.zeros(1, np.uint32)
    with pytest.raises(LaunchError, match="waits for other blocks, and none of them moves"):
        kernels.call("gradwire_test_waits", flag, np.zeros(1, np.uint32))


def test_shared_memory_is_never_zero_nor_what_another_block_left(kernels: Kernels) -> None:
    out = np.zeros(8, np.uint32)
    kernels.call("gradwire_test_first_words", out)
    np.testing.assert_array_equal(out, 0xA5A5A5A5)


def test_the_words_of_a_warp_are_cudas(kernels: Kernels, rng: np.random.Generator) -> None:
    values = rng.integers(0, 2**32, 32, dtype=np.uint32)
    lanes = np.arange(32)
    down = np.where(lanes % 8 + 3 < 8, values[np.minimum(lanes + 3, 31)], values)
    groups = [values % 5 == value % 5 for value in values]
    reverse = [int(f"{value:032b}"[::-1], 2) for value in values]
    high = values.astype(np.uint64) * 0x9E3779B9 >> 32
    zeros = [32 - int(v >> (lane + 1) // 2).bit_length() for lane, v in enumerate(values)]
    expected = np.array(
        [
            values[values % 32],
            np.where(lanes >= 3, values[lanes - 3], values),
            down,
            values[lanes ^ 5],
            np.full(32, np.sum((values % 2) << lanes)),
            [np.sum(group << lanes) for group in groups],
            np.full(32, values.sum(dtype=np.uint32)),
            np.full(32, values.max()),
            np.ones(32),
            np.where(lanes % 2, values[1::2].min(), values[::2].min()),
            np.full(32, np.sum(values % 2)),
            np.array(reverse) ^ high.astype(np.int64) ^ np.array(zeros),
        ],
        np.uint64,
    )
    for _ in kernels.orders():
        out = np.zeros((32, 12), np.uint32)
        kernels.call("gradwire_test_words", values, out)
        np.testing.assert_array_equal(out.T, expected)
