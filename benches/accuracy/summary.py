"""From runs to what they show: best rates, means, standard errors, verdicts."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from . import store
from .plan import SECTIONS, Plan, Run, Section
from .store import Record

POINTS = 0.2
"""Difference that is allowed in any case, in points."""

ALLOWED: dict[str, tuple[float, bool]] = {
    "adam(0.01)": (POINTS, True),
    "adam(0.002), warm-up": (0.5, False),
    "adam_onebit()": (POINTS, False),
    "topk(0.01), SGD without momentum": (POINTS, True),
}
"""For each method with an aim: how many points it may be behind the best dense baseline, and
whether it may be one standard error behind if that is more."""


@dataclass(frozen=True)
class Result:
    """One method with so many ranks at one learning rate, over all seeds.

    Attributes
    ----------
    points : tuple of float
        The measure of each seed in points: 100 times accuracy or area. NaN if the run diverged.
    loss : float
        Mean held-out loss.
    bytes_per_step : float
        Bytes that a rank sends.
    """

    method: str
    ranks: int
    learning_rate: float
    points: tuple[float, ...]
    loss: float
    bytes_per_step: float

    @property
    def mean(self) -> float:
        """Mean over the seeds."""
        return fmean(self.points)

    @property
    def error(self) -> float:
        """Standard error of the mean; NaN for one seed."""
        if len(self.points) < 2 or math.isnan(self.mean):
            return math.nan
        return stdev(self.points) / math.sqrt(len(self.points))


@dataclass(frozen=True)
class Verdict:
    """How far a method ends behind the best dense baseline, in points; negative if ahead.

    Attributes
    ----------
    error : float
        Standard error of the difference; NaN for one seed.
    allowed : float or None
        How far it may be behind; None for a method without an aim.
    """

    result: Result
    behind: float
    error: float
    allowed: float | None

    @property
    def passed(self) -> bool | None:
        """Whether the aim is met."""
        return None if self.allowed is None else self.behind <= self.allowed


@dataclass(frozen=True)
class Summary:
    """One section: the best rate of every finished series, and all rates."""

    section: Section
    steps: int
    seeds: int
    complete: bool
    best: tuple[Result, ...]
    every: tuple[Result, ...]

    def dense(self, ranks: int) -> Result:
        """Return the best baseline with so many ranks, or with two if there is none."""
        mine = [each for each in self.best if each.method in self.section.baselines]
        same = [each for each in mine if each.ranks == ranks] or mine
        return max(same, key=lambda each: each.mean)

    def verdicts(self) -> list[Verdict]:
        """Return a verdict for every method that compresses."""
        return [
            verdict(each, self.dense(each.ranks))
            for each in self.best
            if each.method not in self.section.baselines
        ]


def verdict(result: Result, dense: Result) -> Verdict:
    """Compare a method with a dense baseline, each at its own best rate."""
    behind = dense.mean - result.mean
    error = math.hypot(dense.error, result.error)
    allowed = None
    if result.method in ALLOWED:
        allowed, or_error = ALLOWED[result.method]
        if or_error and not math.isnan(error):
            allowed = max(allowed, error)
    return Verdict(result, behind, error, allowed)


def summarize(plan: Plan, records: Mapping[Run, Record]) -> list[Summary]:
    """Return the sections that have a finished baseline, in the order of the plan."""
    found = []
    scores = store.scores(dict(records))
    for name in plan.sections:
        section = SECTIONS[name]
        best, complete = [], True
        for owner, method, ranks in plan.series():
            if owner.name != name:
                continue
            rate = plan.best(section, method, ranks, scores)
            if rate is None:
                complete = False
            else:
                best.append(_result(section, _of(records, name, method, ranks)[rate]))
        if not any(each.method in section.baselines for each in best):
            continue
        every = [
            _result(section, group)
            for owner, method, ranks in plan.series()
            if owner.name == name
            for _, group in sorted(_of(records, name, method, ranks).items())
        ]
        seeds = max(len(each.points) for each in best)
        found.append(Summary(section, plan.steps(name), seeds, complete, tuple(best), tuple(every)))
    return found


def _of(
    records: Mapping[Run, Record], section: str, method: str, ranks: int
) -> dict[float, list[Record]]:
    """Return the records of a series by rate, in the order of seeds."""
    found: dict[float, list[Record]] = {}
    for run in sorted(records, key=lambda run: run.seed):
        if (run.section, run.method, run.ranks) == (section, method, ranks):
            found.setdefault(run.learning_rate, []).append(records[run])
    return found


def _result(section: Section, group: Sequence[Record]) -> Result:
    first = group[0]["key"]

    def last(record: dict[str, Any], name: str) -> float:
        return math.nan if record["diverged"] else float(record["points"][-1][name])

    return Result(
        method=first["method"],
        ranks=first["ranks"],
        learning_rate=first["learning_rate"],
        points=tuple(100 * last(record, section.measure) for record in group),
        loss=fmean(last(record, "loss") for record in group),
        bytes_per_step=fmean(record["bytes_per_step"] for record in group),
    )
