"""Sums of entries with random signs: their squares are on average those of all entries.

Alon, Matias, Szegedy, "The Space Complexity of Approximating the Frequency Moments", STOC 1996.
"""

import functools

import numpy as np
import torch

SUMS = 64  # each with a standard error of the square root of two
ENTRIES = 1 << 16  # of a tensor, at most, at a time


def sums_of(values: torch.Tensor, signs: torch.Tensor, out: torch.Tensor) -> None:
    """Write the sums of rows of values with these signs, and the sum of their squares."""
    values = values.float()
    torch.sum(values * signs, 0, out=out[:-1])
    torch.sum(values.square(), (0, 1), out=out[-1])


def sample(values: torch.Tensor, turn: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return entries of a flat tensor in rows of SUMS, and as many signs, equal on all ranks.

    Of more than 65,536 entries, every third, fifth, ... row of 64 is among them, in the next turn
    other ones. What does not fill a row is left out.
    """
    stride = -(-values.numel() // ENTRIES) | 1
    rows = values.numel() // (SUMS * stride)
    if rows == 0:
        stride, rows = 1, 1
        values = torch.nn.functional.pad(values, (0, max(0, SUMS - values.numel())))
    table = _signs(values.device)
    begin = turn * 40503 % (len(table) - rows + 1)
    chosen = values[: rows * stride * SUMS].view(rows, stride, SUMS)[:, turn % stride]
    return chosen, table[begin : begin + rows]


@functools.cache
def _signs(device: torch.device) -> torch.Tensor:
    """Return random signs, of shape (2048, SUMS), the same on all ranks."""
    rows = 2 * ENTRIES // SUMS
    bits = np.unpackbits(np.random.PCG64(0).random_raw(rows * SUMS // 64).view(np.uint8))
    return torch.from_numpy(2.0 * bits.astype(np.float32) - 1.0).view(rows, SUMS).to(device)
