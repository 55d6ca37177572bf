"""From curves and times of steps to the time that each method takes, and who wins."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from statistics import fmean

from benches.accuracy.plan import SECTIONS as TRAINED
from benches.accuracy.store import Record
from benches.accuracy.summary import POINTS

from . import curves, methods
from .decisions import Decision
from .plan import SECTIONS, Cell, Plan
from .times import StepTime, step_time

TOLERANCE = POINTS / 100
"""How far below the final accuracy of dense fp32 the mark is: what `make accuracy` allows."""

GAIN = 1.02
"""A method that compresses wins only if it is faster than the best dense one by so much."""


_CurveAt = Callable[[int], "list[tuple[int, float]] | None"]


class Verdict(Enum):
    """How a method that compresses compares with the best dense one."""

    FASTER = "faster"
    SLOWER = "slower"
    NOISE = "within the noise"
    MISSED = "below the accuracy"
    UNSETTLED = "not settled"
    UNTRAINED = "not trained"


@dataclass(frozen=True)
class Result:
    """One method in one cell.

    Attributes
    ----------
    steps : float or None
        To the mark; None if it is never reached, or not known. 1 for a model that is only timed.
    keeps : bool
        Of a model that is only timed: whether the method reaches the mark on every task.
    decision : Decision, optional
        Of ``auto``.
    trained : bool
        Whether curves stand for the method: for ``auto``, for what it decided.
    like : str
        The method whose curve is taken.
    seconds : float or None
        To the mark.
    """

    method: str
    kind: str
    step: StepTime
    steps: float | None
    keeps: bool = True
    decision: Decision | None = None
    trained: bool = True
    like: str = ""

    @property
    def seconds(self) -> float | None:
        return None if self.steps is None else self.steps * self.step.seconds

    @property
    def settled(self) -> bool:
        """Whether it knows how it goes on."""
        return self.decision is None or self.decision.settled

    @property
    def may_win(self) -> bool:
        """Whether its time, if it is the shortest, is that of the accuracy of dense training."""
        return self.keeps and self.settled and self.trained

    def apart(self, other: "Result") -> bool:
        """Tell whether the spreads of two times to the mark have nothing in common.

        Of a single turn nothing is known of the spread.
        """
        if self.steps is None or other.steps is None:
            return True
        if min(self.step.count, other.step.count) < 2:
            return False
        first, second = sorted((self, other), key=_seconds)
        return _scaled(first, first.step.high) < _scaled(second, second.step.low)


@dataclass(frozen=True)
class Outcome:
    """All methods in one cell."""

    cell: Cell
    results: Mapping[str, Result]
    bound: StepTime

    @property
    def dense(self) -> Result:
        """The faster of the dense methods."""
        both = [self.results[name] for name in methods.DENSE]
        return min(both, key=_seconds)

    @property
    def compressed(self) -> Result:
        """The fastest of the others, of those that may win if there are any."""
        others = [each for each in self.results.values() if each.kind != "dense"]
        return min(others, key=lambda each: (not each.may_win, _seconds(each)))

    @property
    def verdict(self) -> Verdict:
        """How the best that compresses compares."""
        return self.compare(self.compressed)

    @property
    def winner(self) -> Result | None:
        """The fastest method; None where that is within the noise."""
        if self.verdict is Verdict.NOISE:
            return None
        return self.compressed if self.verdict is Verdict.FASTER else self.dense

    def compare(self, result: Result) -> Verdict:
        """Return how a method that compresses compares with the best dense one.

        It is faster or slower only by more than `GAIN`, if the spreads do not overlap. What is
        beyond doubt faster than a step without any exchange cannot be: something was wrong.
        """
        if not result.trained:
            return Verdict.UNTRAINED
        gain = self.gain(result)
        if gain == 0 or not result.keeps:
            return Verdict.MISSED
        if not result.settled:
            return Verdict.UNSETTLED
        sound = result.step.high >= self.bound.low and self.dense.step.high >= self.bound.low
        if not sound or not result.apart(self.dense) or 1 / GAIN < gain <= GAIN:
            return Verdict.NOISE
        return Verdict.FASTER if gain > 1 else Verdict.SLOWER

    def below(self, result: Result) -> bool:
        """Tell whether a step took less time than one without any exchange."""
        return result.step.seconds < self.bound.seconds

    def gain(self, result: Result) -> float:
        """Return how many times as fast as the best dense method; 0 if the mark is not reached."""
        if result.seconds is None or self.dense.seconds is None:
            return 0.0
        return self.dense.seconds / result.seconds


def _seconds(result: Result) -> float:
    return float("inf") if result.seconds is None else result.seconds


def _scaled(result: Result, seconds: float) -> float:
    assert result.steps is not None  # or it had no time to the mark
    return result.steps * seconds


def mean_curve(records: Sequence[Record], measure: str) -> list[tuple[int, float]]:
    """Return step and mean over runs at each evaluation; nothing if one of them diverged."""
    if not records or any(each["diverged"] for each in records):
        return []
    together = zip(*(each["points"] for each in records), strict=True)
    return [(int(each[0]["step"]), fmean(point[measure] for point in each)) for each in together]


def reached(curve: Sequence[tuple[int, float]], mark: float) -> float | None:
    """Return the steps after which a curve reaches a mark, on straight lines between its points.

    Nothing is known before the first point: a curve that begins above the mark has taken as many.
    """
    before: tuple[float, float] | None = None
    for step, value in curve:
        if value >= mark:
            if before is None:
                return float(step)
            at, low = before
            return at + (step - at) * (mark - low) / (value - low)
        before = step, value
    return None


class Curves:
    """The curves of a plan, each at its best learning rate."""

    def __init__(self, plan: Plan, made: curves.Curves) -> None:
        self._plan, self._made = plan, made
        self._series = {
            (each.section, each.method, each.ranks): each for each in curves.narrowed(plan, made)
        }
        self._unchanged = curves.unchanged(plan, made)

    def curve(self, section: str, method: str, ranks: int) -> list[tuple[int, float]] | None:
        """Return the mean curve over the seeds; None if a run is missing."""
        name, trained = curves.source(section, method, ranks)
        each = self._series.get((section, name, trained))
        rate = None if each is None else curves.chosen_rate(each, self._made)
        if each is None or rate is None:
            return None
        runs = [each.run(rate, seed) for seed in range(self._plan.seeds)]
        if any(run not in self._made for run in runs):
            return None
        return mean_curve([self._made[run] for run in runs], TRAINED[section].measure)

    def unchanged(self, section: str, method: str, ranks: int) -> list[tuple[int, float]] | None:
        """Return the mean curve at the best rate of dense training, over the seeds there are."""
        there = self._at_dense_rate(section, method, ranks)
        return mean_curve(there, TRAINED[section].measure) if there else None

    def unchanged_rate(self, section: str, method: str, ranks: int) -> str:
        """Return the best rate of dense training, and how many seeds a method has there."""
        rate = self._unchanged[section, method, ranks].rates[0]
        return f"{rate:g} ({len(self._at_dense_rate(section, method, ranks))}), dense training's"

    def _at_dense_rate(self, section: str, method: str, ranks: int) -> list[Record]:
        each = self._unchanged.get((section, method, ranks))
        runs = [] if each is None else [each.run(each.rates[0], s) for s in range(self._plan.seeds)]
        return [self._made[run] for run in runs if run in self._made]

    def tried(self, section: str, method: str, ranks: int) -> dict[float, int]:
        """Return the learning rates that were tried, and with how many seeds."""
        each = self._series.get((section, method, ranks))
        found: dict[float, int] = {}
        for run in self._made:
            if each is not None and run == each.run(run.learning_rate, run.seed):
                found[run.learning_rate] = found.get(run.learning_rate, 0) + 1
        return dict(sorted(found.items()))

    def rate(self, section: str, method: str, ranks: int) -> float | None:
        """Return the learning rate whose curve is taken."""
        each = self._series.get((section, method, ranks))
        return None if each is None else curves.chosen_rate(each, self._made)

    def mark(self, section: str, ranks: int) -> float | None:
        """Return the accuracy to reach: what dense fp32 ends with, less the tolerance."""
        curve = self.curve(section, methods.FP32, self._at(ranks)[0])
        return curve[-1][1] - TOLERANCE if curve else None

    def steps(self, section: str, method: str, ranks: int) -> tuple[bool, float | None]:
        """Return whether the curves are there, and the steps to the mark.

        For a number of ranks that is not trained, the larger of the neighbours' steps.
        """
        return self._steps(section, ranks, functools.partial(self.curve, section, method))

    def steps_of_auto(
        self, section: str, ranks: int, decision: Decision
    ) -> tuple[str | None, float | None]:
        """Return what ``auto`` decided that takes the most steps to the mark, and how many.

        Its learning rate is the best one of dense training, whatever it decides. None in place of
        the name if a curve is missing.
        """
        found: dict[str, float | None] = {}
        for name in methods.decided(section, decision):
            there, found[name] = self._steps(
                section, ranks, functools.partial(self.unchanged, section, name)
            )
            if not there:
                return None, None
        slowest = max(found, key=lambda name: found[name] or float("inf"))
        return slowest, found[slowest]

    def _steps(self, section: str, ranks: int, curve_at: _CurveAt) -> tuple[bool, float | None]:
        both = [(curve_at(each), self.mark(section, each)) for each in self._at(ranks)]
        known = [reached(curve, mark) for curve, mark in both if curve is not None and mark]
        if None in known:
            return True, None
        there = len(known) == len(both)
        return there, max(each for each in known if each is not None) if there else None

    def keeps(self, family: str, method: str, decision: Decision | None) -> bool:
        """Tell whether a method reaches the mark on all tasks of an optimizer, with two ranks."""
        for section in self._plan.sections:
            if SECTIONS[section].trained and SECTIONS[section].family == family:
                if decision is None:
                    there, steps = self.steps(section, method, 2)
                else:
                    name, steps = self.steps_of_auto(section, 2, decision)
                    there = name is not None
                if there and steps is None:
                    return False
        return True

    def _at(self, ranks: int) -> list[int]:
        trained = self._plan.trained_ranks
        if ranks in trained:
            return [ranks]
        below = [each for each in trained if each < ranks]
        above = [each for each in trained if each > ranks]
        return [*below[-1:], *above[:1]]


def outcomes(plan: Plan, cells: Mapping[Cell, Record], made: curves.Curves) -> dict[Cell, Outcome]:
    """Return the outcome of each cell that was timed, and whose dense curves are there."""
    known = Curves(plan, made)
    found = {}
    for cell, record in cells.items():
        rows = record["rows"]
        results = {}
        section = SECTIONS[cell.section]
        for name, method in methods.compared(cell.section).items():
            if method.kind == "none":
                continue
            decision, trained, like = None, True, name
            if method.kind == "auto":
                (row,) = [row for row in rows if row["method"] == name]
                decision = Decision.of(row["said"], row)
                trained = methods.curves_stand_for(cell.section, decision.codecs)
            steps: float | None = 1.0
            if section.trained and decision is not None:
                slowest, steps = known.steps_of_auto(cell.section, cell.ranks, decision)
                trained = trained and slowest is not None
                steps, like = (steps, slowest or name) if trained else (None, name)
            elif section.trained:
                there, steps = known.steps(cell.section, name, cell.ranks)
                if not there:
                    continue
            kept = section.trained or known.keeps(section.family, name, decision)
            timed = step_time(rows, cell.section, name)
            results[name] = Result(name, method.kind, timed, steps, kept, decision, trained, like)
        if all(name in results for name in methods.DENSE) and len(results) > len(methods.DENSE):
            bound = step_time(rows, cell.section, methods.NONE)
            found[cell] = Outcome(cell, results, bound)
    return found
