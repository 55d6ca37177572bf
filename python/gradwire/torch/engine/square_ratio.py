"""How large the squares of averages are beside those of each rank's gradients, by measurement.

Uncompressed training divides by the root of the average's second moment; a codec that computes
Adam's step divides by that of its own rank's gradients. These hold the noise of the rank's batch:
if nothing but noise is there, N ranks have squares N times those of their average, and a step is
too short by the root of N. So the second moment of each parameter counts as multiplied by the
ratio of the squares, which makes the learning rate of uncompressed training the right one for any
number of ranks.

Squares of sums of entries with random signs are on average those of all entries: Alon, Matias,
Szegedy, "The Space Complexity of Approximating the Frequency Moments", STOC 1996.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import torch

from gradwire import _validate
from gradwire.torch.engine.parameter import BucketSlice, ParameterSlot
from gradwire.torch.engine.step import BucketTask
from gradwire.torch.transport import Channel

SUMS = 64  # each with a standard error of the square root of two
ENTRIES = 1 << 16  # of a tensor, at most, at a time
INTERVAL = 16  # a parameter is measured in the first 16 steps that use it, then in every 16th


class SquareRatio(NamedTuple):
    """The ratio for one parameter: the mean of its latest measurements, the same on all ranks.

    With two ranks whose gradients are 3 and 1, the square of the average is 4, the mean of the
    squares 5: a ratio of 0.8. It is 1 if all ranks have the same gradient, and on average 1/N if
    the gradients of N ranks have nothing in common.
    """

    mean: float = 1.0
    measurements: int = 0  # 16 stands for more
    # What averages were divided by to make the second moment of them, before the first 16
    # measurements. Until then, it stands for the mean.
    made_with: float | None = None

    @property
    def factor(self) -> float:
        """What the second moment counts as multiplied by."""
        return self.mean if self.made_with is None else self.made_with

    @property
    def root(self) -> float:
        """What steps are divided by."""
        return math.sqrt(self.mean if self.made_with is None else self.made_with)

    def with_measurement(self, measurement: float, ranks: int) -> "SquareRatio":
        """Return the ratio with one more measurement, which by chance may be above 1."""
        count = min(self.measurements + 1, INTERVAL)
        mean = self.mean + (measurement - self.mean) / count if self.measurements else measurement
        mean = min(max(mean, 1.0 / ranks), 1.0)
        return SquareRatio(mean, count, None if count == INTERVAL else self.made_with)

    def taken_over(self) -> "SquareRatio":
        """Return the ratio of a second moment that is made with it: what is known may be old."""
        return SquareRatio(self.mean, made_with=self.factor)

    def correction(self, made_with: float, beta2: float, steps: float) -> float:
        """Return what to multiply a second moment of so many steps by at the 16th measurement.

        It consists of squares of averages, divided by ``made_with``, and of this rank's own from
        the last 15 steps. After 100 steps with a ``beta2`` of 0.999, 16 per cent are its own: with
        a mean of 0.2, and 1 before, 1 / (0.84 * 0.2 + 0.16) makes the whole as large as if all
        were.
        """
        last = INTERVAL - 1
        taken_over: float = beta2**last * (1 - beta2 ** (steps - last)) / (1 - beta2**steps)
        return 1 / (taken_over * self.mean / made_with + 1 - taken_over)

    @classmethod
    def read(cls, what: str, saved: Any) -> "SquareRatio":
        """Return the ratio that a checkpoint holds as a list; raise an error if it is none."""
        mean, count, made_with = saved
        return cls(
            _validate.unit_interval(what, mean),
            _validate.integer(what, count, low=0, high=INTERVAL),
            None if made_with is None else _validate.unit_interval(what, made_with),
        )


def use_measurement(parameter: ParameterSlot, measurement: float, ranks: int) -> Callable[[], None]:
    """Use a measurement in this step already: for its rate, and for a moment that was taken over.

    Returns a function that undoes that once the state is as it was before this step.
    """
    before: SquareRatio | None = parameter.ratio
    ratio = (before or SquareRatio()).with_measurement(measurement, ranks)
    moment = None
    if before is not None and before.made_with is not None and ratio.made_with is None:
        state, memory = parameter.state.state_dict(), cast("Any", parameter.codec.memory)
        moment, steps = state["second_moment"], state["scalars"]["second_moment_steps"]
        factor = np.float32(ratio.correction(before.made_with, memory.beta2, steps))
        parameter.state.load_state_dict(state | {"second_moment": moment * factor})

    def undo() -> None:
        if moment is not None:
            saved = parameter.state.state_dict()
            parameter.state.load_state_dict(saved | {"second_moment": moment})
        parameter.use_ratio(before)

    parameter.use_ratio(ratio)
    return undo


def find_due(task: BucketTask) -> list[BucketSlice]:
    """Return the pieces of a bucket whose ratios are due, the same on every rank.

    One without a ratio is due in every 16th step: if its gradients are zero, which gives no
    measurement, a collective in each step would be in vain.
    """
    all_due, due = task.step.number % INTERVAL == 0, []
    for piece in task.contents.pieces:
        parameter = piece.parameter
        ratio = parameter.ratio
        # Without an optimizer, whoever makes the steps says how long they are.
        if (
            (all_due or (ratio is not None and ratio.measurements < INTERVAL))
            and parameter.rate is not None
            and parameter.codec.memory.updates
        ):
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
            parameter = piece.parameter
            undo = use_measurement(parameter, ratio, channel.size)
            task.step.ratios[parameter.name] = undo
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
