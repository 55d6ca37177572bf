"""Measures the ratios of squares of a bucket: see `gradwire.torch.engine.square_ratio`."""

import math
from collections.abc import Sequence

import numpy as np
import torch

from gradwire.torch.backends.signed_sums import SUMS, sample, sums_of
from gradwire.torch.engine.parameter import BucketSlice
from gradwire.torch.engine.square_ratio import INTERVAL
from gradwire.torch.engine.step import BucketTask
from gradwire.torch.transport import Channel


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
    if channel.size == 1:
        return 0
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
