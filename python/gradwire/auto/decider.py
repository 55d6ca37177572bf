"""Decides on a plan: measures, predicts, tries, and keeps what was the fastest."""

import enum
import math
from collections.abc import Callable
from typing import Protocol

from gradwire.auto.figures import Figures
from gradwire.auto.model import Model
from gradwire.auto.setting import FP32, Plan, describe

__all__ = ["Decider", "Evidence"]

GAIN = 0.03
"""A plan is tried if it is predicted to be so much faster than what is known."""
LESS = 0.01
"""A plan that leaves out more is kept only if its step was measured to be so much shorter."""
CLEAR = 0.3
"""A difference that the first steps are enough to see."""
BEATEN = 0.1
"""A plan in use is doubted if another one was measured to take so much less than it takes now."""
CHANGED = 0.3
"""An exchange that takes so much more or less time is over another link."""
MATTERS = 0.03
"""What takes less than this share of a step is left alone."""
SETTLING = 2
"""Steps after a change that are not measured: size limits are learnt, residuals sent."""
FIRST, MORE = 3, 6
"""Steps that are measured at first, and then if the difference is not clear.

The median of three leaves out one that was held up.
"""
SHORTEST, LONGEST = 8, 256
"""Steps between two looks at a plan that is in use."""
TRIALS = 4
"""Plans that are tried one after another on one link."""
AGAIN = 512
"""Steps until a plan that did not gain is tried again, doubled each time."""
AGED = 1024
"""Steps after which nothing measured with another plan than that in use counts any more."""


class Evidence(Protocol):
    """What is measured only when it is needed, on all ranks together."""

    def model(self, figures: Figures) -> Model:
        """Return the cost model with these figures."""


class Phase(enum.Enum):
    """What the decider is about."""

    MEASURING = "measuring"
    TRYING = "trying"
    CONFIRMING = "confirming"
    SETTLED = "settled"


class Decider:
    """The decisions of one attachment. The same figures lead to the same decisions on any machine.

    It begins with figures of the plan in use. If the exchange costs time, the model predicts the
    step of all others; the fastest is tried, and stays only if its measured step is shorter, also
    than that of the plan before it, which is measured once more. Of
    plans whose predicted steps differ by 1 % or less, the one that leaves out the least is tried,
    and one that leaves out less than that in use is tried if it is as fast.
    A plan that did not gain is not tried again for a while, which doubles each time. Later looks
    come at growing intervals; if the exchange takes longer or shorter than it did, twice in a row,
    the link has changed, and all begins anew. If steps take longer than another plan had taken,
    that one is tried again.

    Attributes
    ----------
    plan : tuple of Setting
        In use.
    due : int
        Steps until the next look, of which the last ones since a change are to be measured.
    keeps : bool
        What was measured since the last look counts at the next one, too.
    reason : str
        Why this plan is in use, in a sentence.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.due = FIRST + SETTLING
        self.keeps = False
        self.reason = "It measures the first steps."
        self._phase = Phase.MEASURING
        self._measured: dict[Plan, float] = {}
        self._measured_at: dict[Plan, int] = {}
        self._failures: dict[Plan, int] = {}
        self._held: dict[Plan, int] = {}
        self._steps = 0  # since the beginning
        self._trials = 0
        self._interval = SHORTEST
        self._reference: Figures | None = None
        self._strange = 0
        self._before = plan
        self._doubted: Plan | None = None  # what a trial has beaten, to be measured once more
        self._model: Model | None = None

    def look(self, figures: Figures, evidence: Evidence) -> Plan:
        """Return the plan from now on, and set `due` and `reason`.

        Parameters
        ----------
        figures : Figures
            Of the steps since the last change of plan, at most since the last look.
        evidence : Evidence
        """
        self._steps += self.due
        self.keeps = False
        act: dict[Phase, Callable[[Figures, Evidence], None]] = {
            Phase.MEASURING: self._measure,
            Phase.TRYING: self._judge,
            Phase.CONFIRMING: self._confirm,
            Phase.SETTLED: self._watch,
        }
        act[self._phase](figures, evidence)
        return self.plan

    # The phases -------------------------------------------------------------------------------

    def _measure(self, figures: Figures, evidence: Evidence) -> None:
        self._measured.clear()
        self._note(figures)
        self._trials = 0
        if all(each == FP32 for each in self.plan) and figures.exposed < MATTERS * figures.period:
            self._model = None
            self._settle(figures)
            return
        self._model = evidence.model(figures)
        best = self._best_untried()
        if best is not None and figures.steps < MORE and self._promise(best) < CLEAR:
            self._wait()  # a closer look before anything is changed for so little
            return
        self._next(figures, best)

    def _judge(self, figures: Figures, evidence: Evidence) -> None:
        del evidence
        known = self._measured[self._before]
        self._note(figures)
        unclear = abs(figures.period - known) < CLEAR * known
        if unclear and figures.steps < MORE:
            self._wait()
            return
        weaker = self._strength(self.plan) < self._strength(self._before)
        if figures.period > (1.0 + LESS if weaker else 1.0 - LESS) * known:
            self._hold(self.plan)
        self._next(figures, self._best_untried())

    def _confirm(self, figures: Figures, evidence: Evidence) -> None:
        del evidence
        self._note(figures)
        self._settle(figures)

    def _watch(self, figures: Figures, evidence: Evidence) -> None:
        reference = self._reference
        if reference is None or figures.buckets != reference.buckets:
            self._reference = reference = figures
        if self._differs(figures, reference):
            self._strange += 1
            self.due = SHORTEST
            if self._strange > 1:
                self._begin_anew(figures, evidence)
            return
        self._strange = 0
        self._note(figures)
        self._interval = min(2 * self._interval, LONGEST)
        self.due = self._interval
        if self._model is not None:
            self._trials = 0
            best = self._once_faster()
            self._forget()
            best = best or self._best_untried()
            if best is not None:
                self._next(figures, best)

    def _wait(self) -> None:
        self.due, self.keeps = MORE, True

    # What they are made of --------------------------------------------------------------------

    def _note(self, figures: Figures) -> None:
        """Remember what a step with the plan in use takes."""
        self._measured[self.plan] = figures.period
        self._measured_at[self.plan] = self._steps

    def _once_faster(self) -> Plan | None:
        """Return a plan, to be tried, with which steps were clearly shorter than they are now."""
        least = min(self._measured, key=lambda plan: self._measured[plan])
        if self._measured[least] >= (1.0 - BEATEN) * self._measured[self.plan]:
            return None
        del self._measured[least]
        return least

    def _forget(self) -> None:
        """Let plans be tried again that have not been in use for long."""
        over = {plan for plan, until in self._held.items() if until <= self._steps}
        aged = {plan for plan, at in self._measured_at.items() if at + AGED <= self._steps}
        for plan in over:
            del self._held[plan]
        for plan in (over | aged) - {self.plan}:
            self._measured.pop(plan, None)

    def _begin_anew(self, figures: Figures, evidence: Evidence) -> None:
        """Measure anew: the link or the work has changed, and nothing known before holds."""
        self._strange = 0
        self._interval = SHORTEST
        self._held.clear()
        self._phase = Phase.MEASURING
        self._measure(figures, evidence)

    def _next(self, figures: Figures, best: Plan | None) -> None:
        """Try another plan, or keep the best that was measured."""
        if best is None or self._trials >= TRIALS:
            self._settle(figures)
            return
        if self._phase is not Phase.TRYING:
            self._doubted = self.plan
        self._before = min(self._measured, key=lambda plan: self._measured[plan])
        self._trials += 1
        self._use(best, Phase.TRYING, SETTLING + FIRST)
        assert self._model is not None  # it has predicted this plan
        self.reason = (
            f"It tries {describe(best)}, which is predicted to take "
            f"{_ms(self._estimate(best))} per step where {describe(self._before)} takes "
            f"{_ms(self._measured[self._before])}."
        )

    def _settle(self, figures: Figures) -> None:
        least = min(self._measured.values())
        near = [plan for plan, seconds in self._measured.items() if seconds <= (1 + LESS) * least]
        best = min(near, key=lambda plan: (self._strength(plan), self._measured[plan]))
        doubted, self._doubted = self._doubted, None
        if doubted is not None and doubted != best:
            # What was measured before the trials may have been slow for another reason.
            self._use(doubted, Phase.CONFIRMING, SETTLING + FIRST)
            self.reason = (
                f"It measures {describe(doubted)} once more, which {describe(best)} has beaten by "
                f"{_ms(self._measured[best])} to {_ms(self._measured[doubted])}."
            )
            return
        # The figures are of the plan that was in use: those of another one come with the next look.
        self._reference = figures if best == self.plan else None
        if best != self.plan and self._interval > SHORTEST:
            self._interval = SHORTEST
        self._use(best, Phase.SETTLED, self._interval + (SETTLING if best != self.plan else 0))
        self.reason = self._why(best, figures)

    def _use(self, plan: Plan, phase: Phase, due: int) -> None:
        self.plan, self._phase, self.due = plan, phase, due

    def _strength(self, plan: Plan) -> float:
        return 0.0 if self._model is None else self._model.strength(plan)

    def _best_untried(self) -> Plan | None:
        """Return the plan to be tried next, if any is predicted to gain."""
        model = self._model
        assert model is not None
        best = min(self._measured, key=lambda plan: self._measured[plan])
        known = self._measured[best]
        promising = {}
        for plan in model.plans():
            if plan in self._measured or self._held.get(plan, 0) > self._steps:
                continue
            # What leaves out less need not gain anything.
            weaker = model.strength(plan) < model.strength(best)
            seconds = self._estimate(plan)
            if seconds < (1.0 + LESS if weaker else 1.0 - GAIN) * known:
                promising[plan] = seconds
        if not promising:
            return None
        least = min(promising.values())
        near = [plan for plan, seconds in promising.items() if seconds <= (1.0 + LESS) * least]
        return min(near, key=model.strength)

    def _estimate(self, plan: Plan) -> float:
        """Return the predicted step, corrected by what measured plans of its kind have shown."""
        model = self._model
        assert model is not None
        kinds = {each.kind for each in plan}
        alike = [
            seconds / model.step(other)
            for other, seconds in self._measured.items()
            if len(other) == len(plan) and {each.kind for each in other} == kinds
        ]
        factor = math.exp(sum(map(math.log, alike)) / len(alike)) if alike else 1.0
        return factor * model.step(plan)

    def _promise(self, plan: Plan) -> float:
        """Return the share of a step that a plan is predicted to save."""
        return 1.0 - self._estimate(plan) / min(self._measured.values())

    def _hold(self, plan: Plan) -> None:
        failures = self._failures.get(plan, 0)
        self._failures[plan] = failures + 1
        self._held[plan] = self._steps + AGAIN * 2**failures

    def _differs(self, figures: Figures, reference: Figures) -> bool:
        """Tell whether exchanges, or the rest of a step, take another time than they did."""

        def other(now: float, then: float) -> bool:
            apart = abs(now - then)
            low, high = sorted((now, then))
            return high > (1.0 + CHANGED) * low and apart > MATTERS * reference.period

        rest, before = (each.period - each.exposed for each in (figures, reference))
        return other(figures.exchanged, reference.exchanged) or other(rest, before)

    def _why(self, best: Plan, figures: Figures) -> str:
        """Return the sentence of the report."""
        seconds = self._measured[best]
        begin = f"It averages by {describe(best)}: a step takes {_ms(seconds)}"
        if self._model is None:
            return (
                f"{begin}, of which the exchange delays {_ms(figures.exposed)} beyond the backward "
                "pass, so that no codec could gain more."
            )
        link = self._model.link
        known = [
            f"{_ms(taken)} was measured with {describe(plan)}"
            for plan, taken in self._measured.items()
            if plan != best
        ]
        dense = tuple(FP32 for _ in best)
        if dense not in self._measured and len(dense) == len(self._model.figures.buckets):
            known.append(f"{_ms(self._model.step(dense))} is predicted with {describe(dense)}")
        rest = "; ".join(known)
        return (
            f"{begin}{', while ' * bool(rest)}{rest}, over a link of "
            f"{_rate(link.bandwidth)} with a latency of {1e3 * link.latency:.2g} ms and a "
            f"computation of {_ms(self._model.compute)}."
        )


def _ms(seconds: float) -> str:
    milliseconds = 1e3 * seconds
    return f"{milliseconds:.0f} ms" if milliseconds >= 100 else f"{milliseconds:.3g} ms"


def _rate(bits: float) -> str:
    return f"{bits / 1e9:.3g} Gbit/s" if bits >= 1e9 else f"{bits / 1e6:.3g} Mbit/s"
