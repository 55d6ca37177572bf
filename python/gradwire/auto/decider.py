"""Decides on a plan: measures, predicts, tries, and keeps what was the fastest."""

import enum
import math
from collections.abc import Callable
from typing import Protocol

from gradwire.auto import explain
from gradwire.auto.candidates import FEW, SOME, beaten, challenge, enough, estimate, promising
from gradwire.auto.measurements import LESS, Budget, Measurements, Timed
from gradwire.auto.model import Model
from gradwire.auto.setting import FP32, Plan, compresses
from gradwire.auto.step_stats import MATTERS, Drift, Figures, outdated

__all__ = ["Decider", "Evidence"]

SETTLING = 2
"""Steps after a change that are not measured: size limits are learnt, residuals sent."""
SLOW = 0.25
"""Seconds of a dense step from which on one step is left out after a change, and not two."""
GLANCE, SPAN = 0.1, 0.25
"""Seconds of steps that are measured at least before a plan is given up, and before it is kept."""
LONG = 4.0
"""Seconds of a step from which on the first one is enough, if it is mostly exchange."""
MOST = 48
"""Steps that a plan is measured for at most."""
WAITS = 4
"""Times that it is measured for longer: not all steps may have been known."""
GIVEN_UP = 1.3
"""A plan is given up at the first look if its step takes so many times as long as the best."""
STRANGE = 2.0
"""A step that takes so many times as long as expected is not believed at the first look."""
TRIALS, REMATCHES = 6, 3
"""Plans that are tried one after another on one link, and that are measured once more."""
SHORTEST, LONGEST, LATEST = 8, 256, 60.0
"""Steps between two looks at a plan in use, and the seconds that make them fewer."""
MOST_ANEW, RENEWED = 6, 2
"""Further looks that it takes at most until all begins anew; times that predictions are renewed."""
OTHER = 1.5
"""A link with so many times the bandwidth, or so much less, is another one."""


class Evidence(Protocol):
    """What is measured only when it is needed, on all ranks together."""

    def model(self, figures: Figures) -> Model:
        """Return the cost model with these figures."""


class Phase(enum.Enum):
    """What the decider is about."""

    MEASURING = "measuring"
    TRYING = "trying"
    SETTLED = "settled"


class Decider:
    """The decisions of one attachment. The same figures lead to the same decisions on any machine.

    It begins with figures of the plan in use. If the exchange costs time, the model predicts the
    step of all others. Those that may be faster, were predictions wrong by nearly a factor of two,
    are tried one after another; what was beaten, but not by far, is measured once more, as steps
    may have been slow for another reason. A plan is measured for a quarter of a second, or at once
    given up if it is far behind. The fastest stays; of two that differ by 1 % or less, the one that
    leaves out less.

    Later looks come at growing intervals. Plans that were close are compared again from time to
    time, for which 1 % of the time may be lost, and the plan in use gives way only to one that is
    clearly faster. If exchanges or the rest of a step take another time than they did, twice in a
    row, or the link turns out to be another one, all begins anew.

    Attributes
    ----------
    plan : tuple of Setting
        In use.
    due : int
        Steps until the next look.
    skips : int
        How many of them come first that are not to be measured.
    keeps : bool
        What was measured since the last look counts at the next one, too.
    reason : str
        Why this plan is in use, in a explain.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.skips = 0
        self.due = 1
        self.keeps = False
        self.reason = "It measures the first steps."
        self._phase = Phase.MEASURING
        self._known = Measurements()
        self._model: Model | None = None
        self._drift = Drift()
        self._budget = Budget()
        self._steps = 0  # since the beginning
        self._trials = 0
        self._again: set[Plan] = set()  # measured once more since all began
        self._incumbent: Plan | None = None  # in use, while another one is compared with it
        self._expected = 0.0  # seconds of a step with the plan that is tried
        self._waits = 0
        self._probed = 0.0  # the bandwidth when the link was last measured
        self._anew = self._renewed = 0  # times that all began anew, and that predictions did
        self._interval = SHORTEST

    @property
    def settled(self) -> bool:
        """Whether the plan in use is neither tried nor measured for the first time."""
        return self._phase is Phase.SETTLED

    def look(self, figures: Figures, evidence: Evidence) -> Plan:
        """Return the plan from now on, and set `due`, `skips`, `keeps` and `reason`.

        Parameters
        ----------
        figures : Figures
            Of the steps since the last change of plan, at most since the last look.
        evidence : Evidence
        """
        self._steps += self.due
        passed, self.keeps, self.skips = self.due, False, 0
        if self._phase is Phase.SETTLED:
            self._budget.earn(passed * figures.period)
        elif self._incumbent is not None:
            self._budget.spend(passed * figures.period, passed * self._timed(self._incumbent))
        act: dict[Phase, Callable[[Figures, Evidence], None]] = {
            Phase.MEASURING: self._measure,
            Phase.TRYING: self._judge,
            Phase.SETTLED: self._look_after,
        }
        act[self._phase](figures, evidence)
        return self.plan

    # The phases -------------------------------------------------------------------------------

    def _measure(self, figures: Figures, evidence: Evidence) -> None:
        """Measure the plan in use, the first of all."""
        timed = self._known.note(self.plan, figures, self._steps)
        long = timed.lasted >= LONG and figures.exposed > 0.5 * figures.period
        if not long and self._wait(timed, FEW):
            return
        costs = figures.exposed + figures.held
        if _dense(self.plan) and costs < MATTERS * figures.period:
            self._model = None
            self._settle(figures)
            return
        self._model = self._modelled(figures, evidence)
        self._next(figures)

    def _judge(self, figures: Figures, evidence: Evidence) -> None:
        """Judge a plan beside the best of the others."""
        timed = self._known.note(self.plan, figures, self._steps)
        best = self._known.timed[self._known.fastest(without=self.plan)]
        behind = timed.seconds > GIVEN_UP * best.seconds and timed.apart(best)
        # A single step that takes far longer than it should may be one that was held up.
        believed = timed.steps >= FEW or timed.seconds < STRANGE * self._expected
        if not (behind and believed and timed.lasted >= GLANCE):
            apart, least = timed.apart(best), enough(timed.seconds)
            if apart:
                least = FEW
            elif self._incumbent is not None:  # which is worth a closer look
                least = max(least, min(MOST, int(LATEST / timed.seconds)))
            if self._wait(timed, least):
                return
        self._next(figures)

    def _look_after(self, figures: Figures, evidence: Evidence) -> None:
        """Look after the plan in use."""
        if self._drift.differs(figures):
            self.due = SHORTEST
            # Where all changes again and again, it takes longer each time to be believed.
            if self._drift.strange > 1 + self._anew:
                self._anew = min(self._anew + 1, MOST_ANEW)
                self._begin_anew(figures, evidence)
            return
        self._known.note(self.plan, figures, self._steps)
        if self._model is None:
            if _dense(self.plan) and figures.exposed > 2.0 * MATTERS * figures.period:
                self._begin_anew(figures, evidence)
                return
        elif self._has_another_link(figures, evidence):
            self._begin_anew(figures, evidence)
            return
        elif self._renewed < RENEWED and outdated(self._model.compute, figures):
            # It was made of steps that other things had held up.
            self._renewed += 1
            self._model = self._modelled(figures, evidence)
            self._trials = 0
            self._again.clear()
            self._next(figures)
            return
        self._interval = min(2 * self._interval, LONGEST)
        if self._interval == LONGEST:
            self._anew = 0
        self.due = self._pause(figures.period)
        if self._model is not None:
            self._challenge()

    # What they are made of --------------------------------------------------------------------

    def _wait(self, timed: Timed, least: int) -> bool:
        """Measure for longer, if it was not long enough."""
        needed = min(MOST, max(least, math.ceil(SPAN / timed.seconds)))
        if timed.steps >= needed or self._waits == WAITS:
            return False
        self._waits += 1
        self.due, self.keeps = needed - timed.steps, True
        return True

    def _next(self, figures: Figures) -> None:
        """Try another plan, measure one once more, or keep the best."""
        model, known = self._model, self._known
        assert model is not None
        if self._incumbent is not None:
            self._return(figures)
            return
        plan = promising(model, known, self._steps) if self._trials < TRIALS else None
        best = known.fastest()
        if plan is not None:
            predicted = estimate(model, known, plan)[0]
            self._trials += 1
            self._try(plan, predicted)
            self.reason = explain.trying(plan, predicted, best, known)
            return
        rival = beaten(known, best, self._again) if len(self._again) < REMATCHES else None
        if rival is not None:
            self._again.add(rival)
            self.reason = explain.again(rival, best, known)
            self._try(rival, self._timed(rival))
            return
        self._settle(figures)
        for each in known.timed.keys() - {self.plan}:
            known.hold(each, self.plan, self._steps)

    def _try(self, plan: Plan, expected: float) -> None:
        """Use a plan for as many steps as tell whether it is far behind."""
        self._expected = expected
        brief = expected >= SLOW and not compresses(plan)
        expected = min(expected, self._timed(self._known.fastest()))
        self.skips = 0 if plan == self.plan else 1 if brief else SETTLING
        self.plan, self._phase, self._waits = plan, Phase.TRYING, 0
        self.due = self.skips + min(SOME, max(1, math.ceil(GLANCE / expected)))

    def _settle(self, figures: Figures) -> None:
        """Keep the best plan."""
        known = self._known
        least = self._timed(known.fastest())
        near = [plan for plan in known.timed if self._timed(plan) <= (1.0 + LESS) * least]
        best = min(near, key=lambda plan: (self._strength(plan), self._timed(plan)))
        self._interval = SHORTEST
        # The figures are of the plan that was in use: those of another one come with the next look.
        self._drift.begin(figures if best == self.plan else None)
        self._budget.begin()
        self._keep(best, figures)

    def _keep(self, best: Plan, figures: Figures) -> None:
        self.skips = 0 if best == self.plan else SETTLING
        self.plan, self._phase, self._incumbent = best, Phase.SETTLED, None
        self.due = self.skips + self._pause(self._timed(best))
        self.reason = explain.settled(best, self._known, self._model, figures)

    def _pause(self, period: float) -> int:
        """Return the steps to the next look at a plan in use."""
        return max(SHORTEST, min(self._interval, int(LATEST / period)))

    def _challenge(self) -> None:
        """Compare the plan in use with another one, if there is reason and time for it."""
        known, model = self._known, self._model
        assert model is not None
        found = challenge(model, known, self.plan, self._steps, SETTLING)
        if found is None or not (found.urgent or self._budget.allows(found.lost)):
            return
        self._budget.spend(found.leaving, 0.0)
        known.hold(found.plan, self.plan, self._steps)
        self._incumbent = self.plan
        self.reason = (
            explain.again(found.plan, self.plan, known)
            if found.measured
            else explain.trying(found.plan, found.expected, self.plan, known)
        )
        self._try(found.plan, found.expected)

    def _return(self, figures: Figures) -> None:
        """Go on with the plan that was in use, or with another one that was clearly faster."""
        incumbent, known = self._incumbent, self._known
        assert incumbent is not None
        mine, its = known.timed[incumbent], known.timed[self.plan]
        weaker = self._strength(self.plan) < self._strength(incumbent)
        limit = 1.0 if weaker else 1.0 - LESS
        if its.seconds < limit * mine.seconds and (weaker or its.apart(mine)):
            known.hold(incumbent, self.plan, self._steps)
            self._interval = SHORTEST
            self._drift.begin(figures)
            incumbent = self.plan
        else:
            assert self._model is not None
            self._budget.spend(self._model.leaving(self.plan, incumbent), 0.0)
        self._keep(incumbent, figures)

    def _has_another_link(self, figures: Figures, evidence: Evidence) -> bool:
        """Measure the link from time to time where frames are too small to tell its speed."""
        model = self._model
        assert model is not None
        if not compresses(self.plan) or not self._budget.may_probe(model.link.bandwidth):
            return False
        found = self._modelled(figures, evidence).link.bandwidth
        # All-reduces beside a backward pass have shown another speed than those with nothing else.
        before, limit = (self._probed, OTHER) if self._probed else (model.link.bandwidth, 2 * OTHER)
        self._probed = found
        low, high = sorted((found, before))
        return high > limit * low

    def _begin_anew(self, figures: Figures, evidence: Evidence) -> None:
        """Measure anew: the link or the work has changed, and nothing known before holds."""
        self._known.clear()
        self._again.clear()
        self._trials = self._waits = self._renewed = 0
        self._probed = 0.0
        self._phase = Phase.MEASURING
        self._measure(figures, evidence)

    def _modelled(self, figures: Figures, evidence: Evidence) -> Model:
        """Return the model with these figures, and count what it took to measure the link."""
        model = evidence.model(figures)
        self._budget.probed(model.probing)
        return model

    def _timed(self, plan: Plan) -> float:
        return self._known.timed[plan].seconds

    def _strength(self, plan: Plan) -> float:
        return 0.0 if self._model is None else self._model.strength(plan)


def _dense(plan: Plan) -> bool:
    return all(each == FP32 for each in plan)
