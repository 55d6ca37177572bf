"""How large the squares of averages are beside those of each rank's gradients, by measurement.

Uncompressed training divides by the root of the average's second moment; a codec that computes
Adam's step divides by that of its own rank's gradients. These hold the noise of the rank's batch:
if nothing but noise is there, N ranks have squares N times those of their average, and a step is
too short by the root of N. So the second moment of each parameter counts as multiplied by the
ratio of the squares, which makes the learning rate of uncompressed training the right one for any
number of ranks.
"""

import math
from typing import Any, NamedTuple

from gradwire import _validate

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

    def is_due(self, step: int) -> bool:
        """Tell whether to measure in this step."""
        return self.measurements < INTERVAL or step % INTERVAL == 0

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
