"""From runs to what they show: best rates, means, standard errors, verdicts."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev

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
    early, last : float
        Means of the measure at the first evaluation and at the last one, in points.
    bytes_per_step : float
        Bytes that a rank sends.
    """

    method: str
    ranks: int
    learning_rate: float
    points: tuple[float, ...]
    loss: float
    bytes_per_step: float
    early: float = math.nan
    last: float = math.nan

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
    def as_accurate(self) -> bool:
        """Whether the difference is within two standard errors."""
        return abs(self.behind) <= 2 * self.error

    @property
    def passed(self) -> bool | None:
        """Whether the aim is met."""
        return None if self.allowed is None else self.behind <= self.allowed


@dataclass(frozen=True)
class Summary:
    """One section: the best rate of every finished series, and all rates.

    Attributes
    ----------
    missing, searched : tuple of (str, int)
        Methods and ranks that have no result yet, and those whose result is not the last word.
    """

    section: Section
    steps: int
    seeds: int
    missing: tuple[tuple[str, int], ...]
    best: tuple[Result, ...]
    every: tuple[Result, ...]
    searched: tuple[tuple[str, int], ...] = ()

    @property
    def finished(self) -> "Summary":
        """The same with the rates of finished series only."""
        every = (each for each in self.every if (each.method, each.ranks) not in self.missing)
        return replace(self, every=tuple(every))

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
        best, missing, searched = [], [], []
        for owner, method, ranks in plan.series():
            if owner.name != name:
                continue
            rate = plan.best(section, method, ranks, scores)
            if rate is None:
                missing.append((method, ranks))
            else:
                if plan.open(section, method, ranks, scores):
                    searched.append((method, ranks))
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
        steps = plan.steps(name)
        parts = tuple(missing), tuple(best), tuple(every), tuple(searched)
        found.append(Summary(section, steps, seeds, *parts))
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

    def mean(at: int, name: str) -> float:
        return fmean(
            math.nan if each["diverged"] else float(each["points"][at][name]) for each in group
        )

    return Result(
        method=first["method"],
        ranks=first["ranks"],
        learning_rate=first["learning_rate"],
        points=tuple(
            math.nan if each["diverged"] else 100 * section.value(each["points"]) for each in group
        ),
        loss=mean(-1, "loss"),
        bytes_per_step=fmean(record["bytes_per_step"] for record in group),
        early=100 * mean(0, section.measure),
        last=100 * mean(-1, section.measure),
    )
