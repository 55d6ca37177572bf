"""Measures the ratios of squares of a bucket: see `gradwire.torch.engine.square_ratio`.

Squares of sums of entries with random signs are on average those of all entries: Alon, Matias,
Szegedy, "The Space Complexity of Approximating the Frequency Moments", STOC 1996.
"""

import functools
import math
from collections.abc import Sequence

import numpy as np
import torch

from gradwire.torch.engine.parameter import BucketSlice
from gradwire.torch.engine.square_ratio import INTERVAL
from gradwire.torch.engine.step import BucketTask
from gradwire.torch.transport import Channel

SUMS = 64  # each with a standard error of the square root of two
ENTRIES = 1 << 16  # of a tensor, at most, at a time


def find_due(task: BucketTask) -> list[BucketSlice]:
    """Return the pieces of a bucket whose ratios are due, the same on every rank.

    One without a ratio is due in every 16th step: if its gradients are zero, which gives no
    measurement, a collective in each step would be in vain.
    """
    step, due = task.step.number, []
    for piece in task.contents.pieces:
        parameter = piece.parameter
        # Without an optimizer, whoever makes the steps says how long they are.
        if parameter.rate is not None and parameter.codec.memory.updates:
            ratio = parameter.ratio
            if step % INTERVAL == 0 if ratio is None else ratio.is_due(step):
                due.append(piece)
    return due


def measure(task: BucketTask, due: Sequence[BucketSlice], channel: Channel) -> int:
    """Measure the ratios of the parameters that are due. A collective of a few sums.

    The norm of the average is estimated from sums of entries with random signs, equal on all ranks,
    so that only these sums are averaged. A measurement has a standard error of 18 per cent, the
    mean of sixteen 4, and the rate of a step half of that. Returns the bytes that this rank passes
    to the collective.
    """
    sums = task.bucket.buffer.new_full((len(due), SUMS + 1), torch.nan, dtype=torch.float32)
    if task.error is None:
        step = task.step.number
        turn = step if step < INTERVAL else step // INTERVAL
        try:
            for row, piece in zip(sums, due, strict=True):
                values = task.bucket.buffer[piece.start : piece.stop]
                sums_of(*sample(values, turn), row)
        except BaseException as error:  # of any kind: the other ranks wait for the sums
            task.error = error
    # Their sum over the ranks is exact unless they are very unequal: a resumed run, whose buckets
    # are others at first, adds in another order.
    sums = sums.bfloat16().float().to(task.bucket.frames_on)
    channel.all_reduce(sums.view(-1)).wait()
    for piece, (*common, square) in zip(due, sums.cpu().double().numpy(), strict=True):
        ratio = float(np.square(common).sum() / (channel.size * square)) if square else math.nan
        if math.isfinite(ratio):
            task.step.measure_ratio(piece.parameter, ratio, channel.size)
    return 4 * sums.numel()


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
