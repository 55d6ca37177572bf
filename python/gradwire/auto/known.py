"""What has been measured with each plan, and how surely one is faster than another."""

import math
from dataclasses import dataclass

from gradwire.auto.figures import Figures
from gradwire.auto.setting import Plan, compresses

__all__ = ["LESS", "Known", "Timed"]

LESS = 0.01
"""A plan that leaves out more is kept only if its step was measured to be so much shorter."""
SURE = 2.0
"""Standard errors by which two plans are clearly apart."""
AGAIN = 512
"""Steps until a plan that did not gain is tried again, doubled each time."""
ACROSS = 4
"""Times as many, if that would begin or end compression: residuals and moments change hands."""


@dataclass(frozen=True, slots=True)
class Timed:
    """A step with one plan.

    Attributes
    ----------
    seconds, error : float
        The median, and its standard error.
    steps : int
        Of which it is the median.
    at : int
        When it was measured, in steps since the beginning.
    """

    seconds: float
    error: float
    steps: int
    at: int

    @property
    def lasted(self) -> float:
        """Seconds for which it was measured."""
        return self.seconds * self.steps

    def apart(self, other: "Timed") -> bool:
        """Tell whether the difference is more than noise."""
        return abs(self.seconds - other.seconds) > SURE * math.hypot(self.error, other.error)


class Known:
    """The plans that were measured, and those that are left alone for a while."""

    def __init__(self) -> None:
        self.timed: dict[Plan, Timed] = {}
        self._failures: dict[Plan, int] = {}
        self._held: dict[Plan, int] = {}

    def clear(self) -> None:
        """Forget all: the link or the work is another."""
        self.timed.clear()
        self._failures.clear()
        self._held.clear()

    def note(self, plan: Plan, figures: Figures, at: int) -> Timed:
        """Remember what a step with a plan takes."""
        found = Timed(figures.period, figures.error, figures.steps, at)
        self.timed[plan] = found
        return found

    def fastest(self, *, without: Plan | None = None) -> Plan:
        """Return the plan with the shortest step."""
        return min(
            (each for each in self.timed if each != without),
            key=lambda plan: self.timed[plan].seconds,
        )

    def hold(self, plan: Plan, used: Plan, at: int) -> None:
        """Leave a plan alone for a while beside the one in use, which doubles each time."""
        failures = self.failures(plan)
        self._failures[plan] = failures + 1
        across = ACROSS if compresses(plan) != compresses(used) else 1
        self._held[plan] = at + across * AGAIN * 2**failures

    def failures(self, plan: Plan) -> int:
        """Return how often a plan was left alone."""
        return self._failures.get(plan, 0)

    def held(self, plan: Plan, at: int) -> bool:
        """Tell whether a plan is to be left alone."""
        return self._held.get(plan, 0) > at
