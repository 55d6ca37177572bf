"""Notices that the link or the work is another than when the plan in use was chosen."""

import math

from gradwire.auto.figures import Figures
from gradwire.auto.known import SURE

__all__ = ["MATTERS", "Watch", "outdated"]

CHANGED = 0.3
"""An exchange that takes so much more or less time is over another link."""
MATTERS = 0.03
"""What takes less than this share of a step is left alone."""


class Watch:
    """Compares what is measured with what was measured first.

    Attributes
    ----------
    strange : int
        Looks one after another that were different.
    """

    def __init__(self) -> None:
        self._reference: Figures | None = None
        self.strange = 0

    def begin(self, reference: Figures | None) -> None:
        """Compare with these figures from now on; with the next ones if there are none yet."""
        self._reference = reference
        self.strange = 0

    def differs(self, figures: Figures) -> bool:
        """Tell whether exchanges, or the rest of a step, take another time than they did."""
        then = self._reference
        if then is None or figures.buckets != then.buckets:
            self._reference = then = figures
        noise = SURE * math.hypot(figures.error, then.error)

        def other(now: float, before: float) -> bool:
            apart = abs(now - before)
            low, high = sorted((now, before))
            return high > (1.0 + CHANGED) * low and apart > max(MATTERS * then.period, noise)

        rest, before = (each.period - each.exposed for each in (figures, then))
        found = other(figures.exchanged, then.exchanged) or other(rest, before)
        self.strange = self.strange + 1 if found else 0
        return found


def outdated(compute: float, figures: Figures) -> bool:
    """Tell whether a step computes for another time than predictions rest on."""
    low, high = sorted((figures.compute, compute))
    return high > (1.0 + CHANGED) * low and high - low > SURE * figures.error
