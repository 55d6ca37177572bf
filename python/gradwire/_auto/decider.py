"""Chooses a plan: measures, predicts, tries plans, and keeps the fastest."""

import math
from typing import Literal, Protocol

from gradwire._auto.candidates import (
    FEW,
    SOME,
    challenge,
    estimate,
    promising,
    rematch,
    steps_to_compare,
)
from gradwire._auto.measurements import LESS, Budget, Measurements, StepTime
from gradwire._auto.model import Model
from gradwire._auto.setting import FP32, Plan, compresses, describe
from gradwire._auto.step_stats import MATTERS, Drift, Figures, outdated


def _settled(best: Plan, known: Measurements, model: Model | None, figures: Figures) -> str:
    """Explain why a plan is in use."""
    said = [f"Using {describe(best)}: {_ms(known.timed[best].seconds)} per step"]
    if model is None:
        return (
            f"{said[0]}, of which the exchange takes {_ms(figures.exposed)} after the backward "
            "pass, so no codec could gain more."
        )
    others = [
        f"{_ms(timed.seconds)} with {describe(plan)}"
        for plan, timed in known.timed.items()
        if plan != best
    ]
    said += ["measured " + ", ".join(others)] * bool(others)
    dense = tuple(FP32 for _ in best)
    if dense not in known.timed and len(dense) == len(model.figures.buckets):
        said.append(f"predicted {_ms(model.step(dense))} with {describe(dense)}")
    return (
        f"{'; '.join(said)}; link {_rate(model.link.bandwidth)}, latency "
        f"{1e3 * model.link.latency:.2g} ms, computation {_ms(model.compute)}."
    )


def _ms(seconds: float) -> str:
    milliseconds = 1e3 * seconds
    return f"{milliseconds:.0f} ms" if milliseconds >= 100 else f"{milliseconds:.3g} ms"


def _rate(bits: float) -> str:
    return f"{bits / 1e9:.3g} Gbit/s" if bits >= 1e9 else f"{bits / 1e6:.3g} Mbit/s"


SETTLING = 2
"""Steps after a change that are not measured: size limits adapt, and residuals are sent."""
SLOW = 0.25
"""Seconds of a dense step from which only one step is skipped after a change."""
GLANCE, SPAN = 0.1, 0.25
"""Least seconds of measured steps before a plan is given up, and before it is kept."""
LONG = 4.0
"""Seconds of a step from which one step is enough, if it is mostly exchange."""
MOST, WAITS = 48, 4
"""Largest number of measured steps, and of times that a measurement is prolonged."""
GIVEN_UP, STRANGE = 1.3, 2.0
"""At the first look: factor over the fastest step from which a plan is given up, and over the
expected step from which a step is not believed."""
TRIALS, REMATCHES = 6, 3
"""Number of plans that are tried on one link, and that are measured again."""
SHORTEST, LONGEST, LATEST = 8, 256, 60.0
"""Bounds of the steps between two looks at the plan in use, and the most seconds between them."""
MOST_ANEW, RENEWED = 6, 2
"""Most further looks before a restart, and number of times that predictions are renewed."""
OTHER = 1.5
"""Factor between bandwidths from which a link counts as another one."""


class Evidence(Protocol):
    """Measurements that are made on demand, on all ranks together."""

    def model(self, figures: Figures) -> Model:
        """Return the cost model for these figures."""


class Decider:
    """The decisions of one attachment; the same figures lead to the same decisions everywhere.

    The plan in use is measured first. If its exchange costs time, the model predicts the step of
    all other plans. Those that may be faster, even if predictions are wrong by nearly a factor of
    two, are tried one after another. Plans that were only slightly slower are measured again, since
    something else may have delayed them. A plan is measured for a quarter of a second, or given up
    at once if it is far slower. The fastest plan is kept; of two that differ by 1 % or less, the
    one that sends more.

    Later looks come at growing intervals. Plans that were close are compared again from time to
    time, which may cost 1 % of the time, and replace the plan in use only if clearly faster.
    Everything starts again if the durations of exchanges, or of the rest of a step, change twice in
    a row, or if the bandwidth of the link changes.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan  # in use
        self.due = 1  # steps until the next look
        self.skips = 0  # how many of these, the first ones, are not measured
        self.keeps = False  # whether figures since the last look also count at the next one
        self.reason = "Measuring the first steps."  # why this plan is in use
        self._phase: Literal["measuring", "trying", "settled"] = "measuring"
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
        """Whether the plan in use was chosen, and is not on trial."""
        return self._phase == "settled"

    def look(self, figures: Figures, evidence: Evidence) -> Plan:
        """Return the plan for the next steps, and set `due`, `skips`, `keeps` and `reason`.

        The figures are of the steps since the last look or change of plan.
        """
        self._steps += self.due
        passed, self.keeps, self.skips = self.due, False, 0
        if self.settled:
            self._budget.earn(passed * figures.period)
        elif self._incumbent is not None:
            self._budget.spend(passed * figures.period, passed * self._timed(self._incumbent))
        if self._phase == "measuring":
            self._measure(figures, evidence)
        elif self._phase == "trying":
            self._judge(figures)
        else:
            self._look_after(figures, evidence)
        return self.plan

    def _measure(self, figures: Figures, evidence: Evidence) -> None:
        """Measure the first plan in use."""
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

    def _judge(self, figures: Figures) -> None:
        """Compare the plan on trial with the fastest of the others."""
        timed = self._known.note(self.plan, figures, self._steps)
        best = self._known.timed[self._known.fastest(without=self.plan)]
        behind = timed.seconds > GIVEN_UP * best.seconds and timed.apart(best)
        # A single step that takes far longer than it should may be one that was held up.
        believed = timed.steps >= FEW or timed.seconds < STRANGE * self._expected
        if not (behind and believed and timed.lasted >= GLANCE):
            apart, least = timed.apart(best), steps_to_compare(timed.seconds)
            if apart:
                least = FEW
            elif self._incumbent is not None:  # which is worth a closer look
                least = max(least, min(MOST, int(LATEST / timed.seconds)))
            if self._wait(timed, least):
                return
        self._next(figures)

    def _look_after(self, figures: Figures, evidence: Evidence) -> None:
        """Check the plan in use."""
        if self._drift.differs(figures):
            self.due = SHORTEST
            # If everything keeps changing, each change takes longer to be believed.
            if self._drift.strange > 1 + self._anew:
                self._anew = min(self._anew + 1, MOST_ANEW)
                self._begin_anew(figures, evidence)
            return
        self._known.note(self.plan, figures, self._steps)
        model = self._model
        if model is None:
            anew = _dense(self.plan) and figures.exposed > 2.0 * MATTERS * figures.period
        else:
            anew = self._has_another_link(model, figures, evidence)
        if anew:
            self._begin_anew(figures, evidence)
            return
        if model is not None and self._renewed < RENEWED and outdated(model.compute, figures):
            # Something else had delayed the steps that the model was made of.
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
            self._challenge(self._model)

    def _wait(self, timed: StepTime, least: int) -> bool:
        """Prolong the measurement if it was too short."""
        needed = min(MOST, max(least, math.ceil(SPAN / timed.seconds)))
        if timed.steps >= needed or self._waits == WAITS:
            return False
        self._waits += 1
        self.due, self.keeps = needed - timed.steps, True
        return True

    def _next(self, figures: Figures) -> None:
        """Try another plan, measure one again, or keep the fastest."""
        model, known = self._model, self._known
        assert model is not None
        if self._incumbent is not None:
            self._return(self._incumbent, model, figures)
            return
        plan = promising(model, known, self._steps) if self._trials < TRIALS else None
        best = known.fastest()
        if plan is not None:
            self._trials += 1
            self._try(plan, estimate(model, known, plan)[0], best)
            return
        rival = rematch(known, best, self._again) if len(self._again) < REMATCHES else None
        if rival is not None:
            self._again.add(rival)
            self._try(rival, self._timed(rival), best)
            return
        self._settle(figures)
        for each in known.timed.keys() - {self.plan}:
            known.set_aside(each, self.plan, self._steps)

    def _try(self, plan: Plan, expected: float, other: Plan) -> None:
        """Use a plan for enough steps to show whether it is far slower than another one."""
        what, how = (
            (f"Measuring {describe(plan)} again", "")
            if plan in self._known.timed
            else (f"Trying {describe(plan)}", " predicted")
        )
        self.reason = (
            f"{what}: {_ms(expected)} per step{how}, compared with {_ms(self._timed(other))} for "
            f"{describe(other)}."
        )
        self._expected = expected
        brief = expected >= SLOW and not compresses(plan)
        expected = min(expected, self._timed(self._known.fastest()))
        self.skips = 0 if plan == self.plan else 1 if brief else SETTLING
        self.plan, self._phase, self._waits = plan, "trying", 0
        self.due = self.skips + min(SOME, max(1, math.ceil(GLANCE / expected)))

    def _settle(self, figures: Figures) -> None:
        """Keep the best plan."""
        known = self._known
        least = self._timed(known.fastest())
        near = [plan for plan in known.timed if self._timed(plan) <= (1.0 + LESS) * least]
        best = min(near, key=lambda plan: (self._strength(plan), self._timed(plan)))
        self._interval = SHORTEST
        # These figures belong to the previous plan; those of another one come with the next look.
        self._drift.begin(figures if best == self.plan else None)
        self._budget.begin()
        self._keep(best, figures)

    def _keep(self, best: Plan, figures: Figures) -> None:
        self.skips = 0 if best == self.plan else SETTLING
        self.plan, self._phase, self._incumbent = best, "settled", None
        self.due = self.skips + self._pause(self._timed(best))
        self.reason = _settled(best, self._known, self._model, figures)

    def _pause(self, period: float) -> int:
        """Return the steps until the next look at the plan in use."""
        return max(SHORTEST, min(self._interval, int(LATEST / period)))

    def _challenge(self, model: Model) -> None:
        """Compare the plan in use with another one, if that may gain and the budget allows it."""
        known = self._known
        found = challenge(model, known, self.plan, self._steps, SETTLING)
        if found is None or not (found.urgent or self._budget.allows(found.lost)):
            return
        self._budget.spend(found.leaving, 0.0)
        known.set_aside(found.plan, self.plan, self._steps)
        self._incumbent = self.plan
        self._try(found.plan, found.expected, self.plan)

    def _return(self, incumbent: Plan, model: Model, figures: Figures) -> None:
        """Return to the plan that was in use, unless the other one was clearly faster."""
        known = self._known
        mine, its = known.timed[incumbent], known.timed[self.plan]
        weaker = model.strength(self.plan) < model.strength(incumbent)
        limit = 1.0 if weaker else 1.0 - LESS
        if its.seconds < limit * mine.seconds and (weaker or its.apart(mine)):
            known.set_aside(incumbent, self.plan, self._steps)
            self._interval = SHORTEST
            self._drift.begin(figures)
            incumbent = self.plan
        else:
            self._budget.spend(model.leaving(self.plan, incumbent), 0.0)
        self._keep(incumbent, figures)

    def _has_another_link(self, model: Model, figures: Figures, evidence: Evidence) -> bool:
        """Measure the link from time to time: small frames do not show its bandwidth."""
        if not compresses(self.plan) or not self._budget.may_probe(model.link.bandwidth):
            return False
        found = self._modelled(figures, evidence).link.bandwidth
        # All-reduces beside a backward pass show another bandwidth than those on an idle link.
        before, limit = (self._probed, OTHER) if self._probed else (model.link.bandwidth, 2 * OTHER)
        self._probed = found
        low, high = sorted((found, before))
        return high > limit * low

    def _begin_anew(self, figures: Figures, evidence: Evidence) -> None:
        """Forget all measurements: the link or the workload has changed."""
        self._known = Measurements()
        self._again.clear()
        self._trials = self._waits = self._renewed = 0
        self._probed = 0.0
        self._phase = "measuring"
        self._measure(figures, evidence)

    def _modelled(self, figures: Figures, evidence: Evidence) -> Model:
        """Return the model for these figures, and count the time of measuring the link."""
        model = evidence.model(figures)
        self._budget.probed(model.probing)
        return model

    def _timed(self, plan: Plan) -> float:
        return self._known.timed[plan].seconds

    def _strength(self, plan: Plan) -> float:
        return 0.0 if self._model is None else self._model.strength(plan)


def _dense(plan: Plan) -> bool:
    return all(each == FP32 for each in plan)
