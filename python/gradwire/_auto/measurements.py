"""Measured steps of each plan, plans that are set aside, and the time that trials may cost."""

import math
from dataclasses import dataclass

from gradwire._auto.setting import Plan, compresses
from gradwire._auto.step_stats import SURE, Figures

LESS = 0.01
"""Relative gain from which a plan that sends less is preferred."""
AGAIN, ACROSS = 512, 4
"""Steps until a plan that did not gain is tried again, doubled each time; and the factor if that
would begin or end compression, where residuals and moments have to be moved."""
SHARE = 0.01
"""Share of the time that trials may cost."""
PROBE_SECONDS, PROBE_BITS = 0.1, 2e7
"""Approximate duration and volume of a measurement of the link."""


@dataclass(frozen=True, slots=True)
class StepTime:
    """The measured step of one plan: the median of several, and its standard error."""

    seconds: float
    error: float
    steps: int
    at: int  # when it was measured, in steps since the beginning

    @property
    def lasted(self) -> float:
        """Seconds of all measured steps."""
        return self.seconds * self.steps

    def apart(self, other: "StepTime") -> bool:
        """Tell whether two steps differ by more than noise."""
        return abs(self.seconds - other.seconds) > SURE * math.hypot(self.error, other.error)


class Measurements:
    """The measured plans, and those that are not tried for a while."""

    def __init__(self) -> None:
        self.timed: dict[Plan, StepTime] = {}
        self._failures: dict[Plan, int] = {}
        self._aside: dict[Plan, int] = {}

    def note(self, plan: Plan, figures: Figures, at: int) -> StepTime:
        """Record the step of a plan."""
        found = StepTime(figures.period, figures.error, figures.steps, at)
        self.timed[plan] = found
        return found

    def fastest(self, *, without: Plan | None = None) -> Plan:
        """Return the plan with the shortest step."""
        return min(
            (each for each in self.timed if each != without),
            key=lambda plan: self.timed[plan].seconds,
        )

    def set_aside(self, plan: Plan, used: Plan, at: int) -> None:
        """Do not try a plan for a while, which doubles each time."""
        failures = self.failures(plan)
        self._failures[plan] = failures + 1
        across = ACROSS if compresses(plan) != compresses(used) else 1
        self._aside[plan] = at + across * AGAIN * 2**failures

    def failures(self, plan: Plan) -> int:
        """Return how often a plan was set aside."""
        return self._failures.get(plan, 0)

    def is_set_aside(self, plan: Plan, at: int) -> bool:
        """Tell whether a plan is set aside."""
        return self._aside.get(plan, 0) > at


class Budget:
    """Counts the seconds since a plan was chosen, and those that trials have cost."""

    def __init__(self) -> None:
        self._passed = 0.0
        self._lost = 0.0
        self._probed = 0.0
        self._probing = 0.0  # seconds of the last measurement of the link

    def begin(self) -> None:
        """Start counting."""
        self._passed = self._lost = self._probed = 0.0

    def earn(self, seconds: float) -> None:
        """Count time with the plan in use."""
        self._passed += seconds

    def spend(self, seconds: float, without: float) -> None:
        """Count time with another plan, and the time the plan in use would have taken."""
        self._lost += max(0.0, seconds - without)
        self._passed += seconds

    def allows(self, seconds: float) -> bool:
        """Tell whether a trial may cost this much more."""
        return self._lost + seconds <= SHARE * self._passed

    def may_probe(self, bandwidth: float) -> bool:
        """Tell whether it is time to measure the link, last found to have this bandwidth."""
        seconds = self._probing or PROBE_SECONDS + PROBE_BITS / bandwidth
        return self._passed - self._probed >= seconds / (0.5 * SHARE)

    def probed(self, seconds: float) -> None:
        """Count a measurement of the link; 0 seconds if steps have shown its speed."""
        self._probed, self._probing = self._passed, seconds
