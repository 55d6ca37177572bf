"""From runs to what they show: best rates, means, standard errors, verdicts."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas

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
}
"""For each method with a target: how many points it may be behind the best dense baseline; whether
it may be one standard error behind if that is more; or by what part its loss may be higher."""

SERIES = ["method", "ranks"]


@dataclass(frozen=True)
class Summary:
    """What the runs of a section show.

    ``every`` has a row for each method, number of ranks and learning rate: ``mean`` and standard
    ``error`` of the measure in points over ``seeds``, means of ``loss`` and of the bytes a step;
    NaN where a run diverged. ``best`` has the best rate of every finished series. ``missing``
    series have no result yet.
    """

    section: Section
    steps: int
    every: pandas.DataFrame
    best: pandas.DataFrame
    missing: list[tuple[str, int]]

    @property
    def seeds(self) -> int:
        """Of a result."""
        return int(self.best["seeds"].max())

    def is_dense(self, method: str) -> bool:
        """Tell whether a method is a baseline."""
        return method in self.section.baselines

    def dense(self, ranks: int) -> Any:
        """Return the best baseline with so many ranks, or with two if there is none."""
        mine = self.best[self.best["method"].isin(self.section.baselines)]
        same = mine[mine["ranks"] == ranks]
        found = mine if same.empty else same
        return found.loc[found["mean"].idxmax()]

    def behind(self, result: Any) -> tuple[float, float]:
        """Return how many points a result is behind the best baseline, and the standard error."""
        dense = self.dense(result["ranks"])
        return dense["mean"] - result["mean"], math.hypot(dense["error"], result["error"])


def allowed(method: str, error: float) -> float | None:
    """Return how many points a method may be behind; None if it has no target."""
    if method not in ALLOWED:
        return None
    points, or_error, _ = ALLOWED[method]
    return max(points, error) if or_error and not math.isnan(error) else points


def summarize(plan: Plan, records: Mapping[Run, Record]) -> list[Summary]:
    """Return the sections that have a finished baseline, in the order of the plan."""
    scores = store.scores(records)
    runs = pandas.DataFrame([_row(run, record) for run, record in records.items()])
    found = []
    for name in plan.sections:
        section, missing, best = SECTIONS[name], [], []
        series = [(m, ranks) for owner, m, ranks in plan.series() if owner.name == name]
        if runs.empty or not (runs["section"] == name).any():
            continue
        every = _grouped(runs[runs["section"] == name], series)
        for method, ranks in series:
            rate = plan.best(section, method, ranks, scores)
            if rate is None:
                missing.append((method, ranks))
                continue
            best.append((method, ranks, rate))
        chosen = every[every[[*SERIES, "rate"]].apply(tuple, axis=1).isin(best)]
        if chosen["method"].isin(section.baselines).any():
            found.append(Summary(section, plan.steps(name), every, chosen, missing))
    return found


def _row(run: Run, record: Record) -> dict[str, Any]:
    section, points = SECTIONS[run.section], record["points"]
    row = {
        "section": run.section,
        "method": run.method,
        "ranks": run.ranks,
        "rate": run.learning_rate,
        "nbytes": record["bytes_per_step"],
    }
    if record["diverged"]:
        return row
    return {
        **row,
        "value": 100 * section.value(points),
        "loss": points[-1]["loss"],
    }


def _grouped(runs: pandas.DataFrame, series: list[tuple[str, int]]) -> pandas.DataFrame:
    """Return the means over seeds, in the order of a plan."""
    names = ["value", "loss", "nbytes"]
    groups = runs.reindex(columns=[*SERIES, "rate", *names]).groupby([*SERIES, "rate"])
    means = groups[names].agg(lambda each: each.mean(skipna=False))
    every = means.rename(columns={"value": "mean"})
    every["error"] = groups["value"].agg(lambda each: each.sem(skipna=False))
    every["seeds"] = groups.size()
    every = every.reset_index()
    places = zip(every["method"], every["ranks"], strict=True)
    every["place"] = [series.index(each) for each in places]
    return every.sort_values(["place", "rate"]).drop(columns="place")
