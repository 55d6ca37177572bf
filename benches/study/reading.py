"""From curves and times of steps to the time that each method takes, and who wins.

A curve does not depend on the link: the arithmetic is the same bit for bit. So it comes from
simulated ranks: those of `make accuracy`, and recorded ones.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from statistics import fmean, median, quantiles
from typing import Any

from benches.accuracy.methods import METHODS as ACCURACY
from benches.accuracy.plan import SECTIONS as TASKS
from benches.accuracy.summary import POINTS
from benches.harness import results
from benches.harness.results import Record, Store

from .plan import (
    COMPARED,
    DENSE,
    FP32,
    LARGE,
    METHODS,
    NONE,
    POWER_CURVE,
    SECTIONS,
    TORCH_POWER,
    Cell,
    Plan,
    phases,
)

TIMING = 3
"""Raise it when what is timed changes, or how: cells are then timed again."""

TOLERANCE = POINTS / 100
"""How far below the final accuracy of dense fp32 the mark is: what `make accuracy` allows."""

GAIN = 1.02
"""A method that compresses wins only if it is faster than the best dense one by so much."""


EDITION = 2
"""Of the recorded curves: raise it when what is trained changes."""


@dataclass(frozen=True)
class Run:
    section: str
    method: str
    ranks: int
    learning_rate: float
    seed: int
    steps: int


Curves = dict[Run, Record]


@functools.cache
def _published() -> list[Record]:
    """Return the runs of `make accuracy` of that day."""
    document = results.read(results.FOLDER / "2026-11-24-accuracy.json")
    return [each for each in document["runs"] if not each["diverged"]]


def _names() -> dict[str, str]:
    names = {record["key"]["method"] for record in _published()}
    found = {}
    for method, own in METHODS.items():
        same = (name for name, each in ACCURACY.items() if each == own)
        found[method if method in names else next(same, method)] = method
    return found


def every(kept: results.Store) -> Curves:
    """Return all runs that there are: those of `make accuracy`, and the recorded ones."""
    names = _names()
    found: Curves = {}
    for record in _published():
        key = record["key"]
        if key["section"] in SECTIONS and key["method"] in names:
            found[_run({**key, "method": names[key["method"]]})] = record
    for record in kept.records:
        key = record["key"]
        if key["kind"] != "curve" or key["section"] not in SECTIONS:
            continue
        known = key["method"] in METHODS or key["method"] == POWER_CURVE
        if known and key["edition"] == [EDITION, TASKS[key["section"]].edition]:
            found[_run(key)] = record
    return found


def _run(key: Mapping[str, Any]) -> Run:
    return Run(**{name: key[name] for name in Run.__dataclass_fields__})


def mean_curve(
    section: str, method: str, ranks: int, seeds: int, made: Curves
) -> list[tuple[int, float]] | None:
    """Return step and mean over the seeds at each evaluation, at the rate best with the first.

    None if a run is missing; nothing if one diverged. Dense averages are the same for any number
    of ranks, but for rounding, unless statistics of a rank's own batch take part.
    """
    name = POWER_CURVE if method == TORCH_POWER else method
    trained = 2 if method in DENSE and not SECTIONS[section].norm else ranks
    steps, measure = TASKS[section].steps, TASKS[section].measure
    ends = {
        run.learning_rate: float("-inf") if record["diverged"] else record["points"][-1][measure]
        for run, record in made.items()
        if (run.section, run.method, run.ranks) == (section, name, trained)
        and (run.seed, run.steps) == (0, steps)
    }
    if not ends:
        return None
    rate = max(ends, key=lambda each: ends[each])
    runs = [Run(section, name, trained, rate, seed, steps) for seed in range(seeds)]
    if any(run not in made for run in runs):
        return None
    if any(made[run]["diverged"] for run in runs):
        return []
    together = zip(*(made[run]["points"] for run in runs), strict=True)
    return [(int(each[0]["step"]), fmean(point[measure] for point in each)) for each in together]


def cell_key(cell: Cell, plan: Plan) -> dict[str, Any]:
    """Return what determines the times of a cell, but where they were taken."""
    return {"kind": "steps", "edition": TIMING, **vars(cell), "turns": plan.turns}


def timed_cells(plan: Plan, store: Store) -> dict[Cell, Record]:
    saved = {}
    for record in store.records:
        key = record["key"]
        if (key["kind"], key["edition"], key.get("turns")) == ("steps", TIMING, plan.turns):
            saved[Cell(key["section"], key["ranks"], key["link"])] = record
    return {cell: saved[cell] for cell in plan.cells() if cell in saved}


@dataclass(frozen=True)
class StepTime:
    """Seconds of a step: the median of its turns, and their quartiles, or the extremes of fewer
    than four.
    """

    seconds: float
    low: float
    high: float
    count: int


def step_time(rows: Sequence[Mapping[str, Any]], section: str, method: str) -> StepTime:
    """Return the time of a method's step: with its best buckets, or the mean of its phases.

    Sizes of buckets that were given up after their first turn do not count.
    """
    found = []
    for contestant, share in phases(section, method):
        mine = [_timed(row) for row in rows if row["method"] == contestant and not row["dropped"]]
        found.append((min(mine, key=lambda each: each.seconds), share))
    seconds, low, high = (
        sum(getattr(each, name) * share for each, share in found)
        for name in ("seconds", "low", "high")
    )
    return StepTime(seconds, low, high, min(each.count for each, _ in found))


def _timed(row: Mapping[str, Any]) -> StepTime:
    values = sorted(row["seconds"])
    low, high = values[0], values[-1]
    if len(values) > 3:
        low, _, high = quantiles(values, n=4, method="inclusive")
    return StepTime(median(values), low, high, len(values))


class Verdict(Enum):
    """How a method that compresses compares with the best dense one."""

    FASTER = "faster"
    SLOWER = "slower"
    NOISE = "within the noise"
    MISSED = "below the accuracy"


@dataclass(frozen=True)
class Result:
    """One method in one cell: its step, and steps to the mark, or None if that is never reached.

    Of a model that is only timed, ``steps`` is 1, and ``keeps`` tells whether the method reaches
    the mark on every task.
    """

    method: str
    step: StepTime
    steps: float | None
    keeps: bool = True

    @property
    def seconds(self) -> float:
        """To the mark; infinite if it is not reached."""
        return float("inf") if self.steps is None else self.steps * self.step.seconds

    def apart(self, other: "Result") -> bool:
        """Tell whether the spreads of two times to the mark have nothing in common.

        Of a single turn nothing is known of the spread.
        """
        if self.steps is None or other.steps is None:
            return True
        if min(self.step.count, other.step.count) < 2:
            return False
        first, second = sorted((self, other), key=lambda each: each.seconds)
        assert first.steps is not None
        assert second.steps is not None
        return first.steps * first.step.high < second.steps * second.step.low


@dataclass(frozen=True)
class Outcome:
    cell: Cell
    results: Mapping[str, Result]
    bound: StepTime

    @property
    def dense(self) -> Result:
        """The faster of the dense methods."""
        return min((self.results[name] for name in DENSE), key=lambda each: each.seconds)

    @property
    def compressed(self) -> Result:
        """The fastest of the others, of those that may win if there are any."""
        others = [each for name, each in self.results.items() if name not in DENSE]
        return min(others, key=lambda each: (not each.keeps, each.seconds))

    @property
    def verdict(self) -> Verdict:
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
        gain = self.gain(result)
        if gain == 0 or not result.keeps:
            return Verdict.MISSED
        sound = result.step.high >= self.bound.low and self.dense.step.high >= self.bound.low
        if not sound or not result.apart(self.dense) or 1 / GAIN < gain <= GAIN:
            return Verdict.NOISE
        return Verdict.FASTER if gain > 1 else Verdict.SLOWER

    def gain(self, result: Result) -> float:
        """Return how many times as fast as the best dense method; 0 if the mark is not reached."""
        return 0.0 if result.steps is None else self.dense.seconds / result.seconds


def reached(curve: Sequence[tuple[int, float]], mark: float) -> float | None:
    """Return the steps after which a curve reaches a mark, on straight lines between its points.

    Nothing is known before the first point: a curve that begins above the mark has taken as many.
    """
    at, low = curve[0] if curve else (0, 0.0)
    for step, value in curve:
        if value >= mark:
            return at + (step - at) * (mark - low) / (value - low) if step > at else float(step)
        at, low = step, value
    return None


class Marks:
    """Steps to the mark of every method: what dense fp32 ends with, less the tolerance."""

    def __init__(self, plan: Plan, made: Curves) -> None:
        self._plan, self._made = plan, made

    def _curve(self, section: str, method: str, ranks: int) -> list[tuple[int, float]] | None:
        return mean_curve(section, method, ranks, self._plan.seeds, self._made)

    def steps(self, section: str, method: str, ranks: int) -> tuple[bool, float | None]:
        """Return whether the curves are there, and the steps to the mark.

        For a number of ranks that is not trained, the larger of the neighbours' steps.
        """
        trained = self._plan.trained_ranks
        below = [each for each in trained if each < ranks]
        above = [each for each in trained if each > ranks]
        at = [ranks] if ranks in trained else [*below[-1:], *above[:1]]
        known = []
        for each in at:
            dense, curve = (self._curve(section, name, each) for name in (FP32, method))
            if dense and curve is not None:
                known.append(reached(curve, dense[-1][1] - TOLERANCE))
        if None in known:
            return True, None
        there = len(known) == len(at)
        return there, max(each for each in known if each is not None) if there else None

    def keeps(self, method: str) -> bool:
        """Tell whether a method reaches the mark on all tasks with two ranks."""
        return all(self.steps(name, method, 2) != (True, None) for name in self._plan.trained())


def outcomes(plan: Plan, cells: Mapping[Cell, Record], made: Curves) -> dict[Cell, Outcome]:
    """Return the outcome of each cell that was timed, and whose dense curves are there."""
    marks, found = Marks(plan, made), {}
    keeps = {method: marks.keeps(method) for method in COMPARED}
    for cell, record in cells.items():
        rows, results = record["rows"], {}
        for method in COMPARED:
            timed = step_time(rows, cell.section, method)
            if cell.section == LARGE:
                results[method] = Result(method, timed, 1.0, keeps[method])
                continue
            there, count = marks.steps(cell.section, method, cell.ranks)
            if there:
                results[method] = Result(method, timed, count)
        if all(name in results for name in DENSE) and len(results) > len(DENSE):
            found[cell] = Outcome(cell, results, step_time(rows, cell.section, NONE))
    return found
