"""From runs to what they show: best rates, means, standard errors, verdicts."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, variance

from benches.harness.results import Record

from . import store
from .plan import SECTIONS, Plan, Run, Section

POINTS = 0.2
"""Difference that is allowed in any case, in points."""

ALLOWED: dict[str, tuple[float, bool, float]] = {
    "adam(0.01)": (POINTS, True, 0.01),
    "adam(0.01), all-gather": (POINTS, True, 0.01),
    "adam(0.002)": (0.5, False, 0.02),
    "adam_onebit()": (POINTS, False, 0.01),
    "topk(0.01), SGD without momentum": (POINTS, True, 0.01),
    "muon(0.2)": (POINTS, False, 0.007),
    "muon(0.1)": (POINTS, False, 0.012),
}
"""For each method with a target: how many points it may be behind the best dense baseline; whether
it may be one standard error behind if that is more; or by what part its loss may be higher."""

Series = tuple[str, int]
"""A method, and the number of ranks."""


@dataclass(frozen=True)
class Result:
    """The runs of a series at one learning rate.

    ``values`` has the measure in points for each seed, ``loss`` and bytes a step are means; what
    depends on the end of a run that diverged is NaN.
    """

    series: Series
    rate: float
    values: Sequence[float]
    loss: float
    nbytes: float

    @classmethod
    def of(cls, section: Section, series: Series, rate: float, runs: Sequence[Record]) -> "Result":
        ends = [None if each["diverged"] else each["points"] for each in runs]
        values = [math.nan if each is None else 100 * section.value(each) for each in ends]
        loss = fmean(math.nan if each is None else each[-1]["loss"] for each in ends)
        return cls(series, rate, values, loss, fmean(each["bytes_per_step"] for each in runs))

    @property
    def method(self) -> str:
        return self.series[0]

    @property
    def ranks(self) -> int:
        return self.series[1]

    @property
    def mean(self) -> float:
        return fmean(self.values)

    @property
    def error(self) -> float:
        """The standard error of the mean; NaN where a single run or one that diverged has none."""
        if len(self.values) < 2 or math.isnan(self.mean):
            return math.nan
        return math.sqrt(variance(self.values) / len(self.values))


@dataclass(frozen=True)
class Summary:
    """What the runs of a section show: every rate, and the best one of every finished series."""

    section: Section
    steps: int
    every: Sequence[Result]
    best: Sequence[Result]
    missing: Sequence[Series]

    @property
    def seeds(self) -> int:
        return max(len(each.values) for each in self.best)

    def is_dense(self, result: Result) -> bool:
        return result.method in self.section.baselines

    def dense(self, ranks: int) -> Result:
        """Return the best baseline with so many ranks, or with two if there is none."""
        mine = list(filter(self.is_dense, self.best))
        return max([each for each in mine if each.ranks == ranks] or mine, key=lambda x: x.mean)

    def behind(self, result: Result) -> tuple[float, float]:
        """Return how many points a result is behind the best baseline, and the standard error."""
        dense = self.dense(result.ranks)
        return dense.mean - result.mean, math.hypot(dense.error, result.error)


def allowed(method: str, error: float) -> float | None:
    """Return how many points a method may be behind; None if it has no target."""
    if method not in ALLOWED:
        return None
    points, or_error, _ = ALLOWED[method]
    return max(points, error) if or_error and not math.isnan(error) else points


def summarize(plan: Plan, records: Mapping[Run, Record]) -> list[Summary]:
    """Return the sections that have a finished baseline, in the order of the plan."""
    scores, found = store.scores(records), []
    groups: dict[tuple[str, Series], dict[float, list[Record]]] = {}
    for run, record in records.items():
        rates = groups.setdefault((run.section, (run.method, run.ranks)), {})
        rates.setdefault(run.learning_rate, []).append(record)
    for name in plan.sections:
        section = SECTIONS[name]
        every: list[Result] = []
        best: list[Result] = []
        missing = []
        for _, method, ranks in replace(plan, sections=(name,)).series():
            rates = groups.get((name, (method, ranks)), {})
            rows = [Result.of(section, (method, ranks), x, rates[x]) for x in sorted(rates)]
            every += rows
            rate = plan.best(section, method, ranks, scores)
            best += [each for each in rows if each.rate == rate]
            missing += [(method, ranks)] * (rate is None)
        summary = Summary(section, plan.steps(name), every, best, missing)
        if any(map(summary.is_dense, best)):
            found.append(summary)
    return found
