"""Which curves are trained, and which are those of `make accuracy`.

A curve does not depend on the link: the arithmetic is the same bit for bit. So each is trained once
with simulated ranks, and those of `make accuracy`, which have the same settings, are taken from its
file.
"""

import functools
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from benches.accuracy.methods import METHODS as ACCURACY
from benches.accuracy.plan import SECTIONS as TASKS
from benches.accuracy.plan import SEEDS
from benches.harness import results
from benches.harness.results import Record

from .plan import DENSE, FP32, METHODS, POWER_CURVE, SECTIONS, TORCH_POWER, Plan

EDITION = 2
"""Raise it when what is trained changes: curves are then made again."""


@dataclass(frozen=True)
class Run:
    """One training run with simulated ranks."""

    section: str
    method: str
    ranks: int
    learning_rate: float
    seed: int
    steps: int


Curves = dict[Run, Record]


@functools.cache
def _published() -> tuple[dict[tuple[str, str, int], float], list[Record]]:
    """Return the runs of `make accuracy` of that day, and the best rate of each method in them."""
    runs: list[Record] = [
        each
        for each in results.read(results.FOLDER / "2026-11-24-accuracy.json")["runs"]
        if each["key"]["section"] in TASKS and not each["diverged"]
    ]
    values: dict[tuple[str, str, int], dict[float, list[float]]] = {}
    for each in runs:
        key = each["key"]
        tried = values.setdefault((key["section"], key["method"], key["ranks"]), {})
        value = TASKS[key["section"]].value(each["points"])
        tried.setdefault(key["learning_rate"], []).append(value)
    best = {}
    for series, tried in values.items():
        whole = {rate: fmean(each) for rate, each in tried.items() if len(each) >= SEEDS}
        if whole:
            best[series] = max(whole, key=lambda rate: whole[rate])
    return best, runs


def _name(method: str) -> str | None:
    """Return the name under which `make accuracy` trains a method."""
    if any(method == known for _, known, _ in _published()[0]):
        return method
    return next((name for name, each in ACCURACY.items() if each == METHODS[method]), None)


def every(kept: results.Store) -> Curves:
    """Return all runs that there are: those of `make accuracy`, and our own."""
    names = {_name(method): method for method in METHODS if _name(method)}
    found: Curves = {}
    for record in _published()[1]:
        key = {**record["key"], "method": names.get(record["key"]["method"])}
        if key["section"] in SECTIONS and key["method"]:
            found[_run(key)] = record
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


def source(section: str, method: str, ranks: int) -> tuple[str, int]:
    """Return the method and the number of ranks whose curve stands for this one.

    Dense averages are the same for any number of ranks, but for rounding, unless statistics of a
    rank's own batch take part.
    """
    if method == TORCH_POWER:
        return POWER_CURVE, ranks
    return method, 2 if method in DENSE and not SECTIONS[section].norm else ranks


def first_rates(section: str, method: str, ranks: int, made: Curves) -> set[float]:
    """Return the learning rates that have to be tried with one seed.

    Those of `make accuracy` are known. Where it has none for so many ranks, two of its grid are
    tried: the best with two ranks, and the best with eight or else the double. bfloat16 begins with
    the rate of dense training. PowerSGD is no longer trained.
    """
    if method == POWER_CURVE:
        return set()

    def best(name: str, count: int) -> float | None:
        return _published()[0].get((section, _name(name) or "", count))

    dense, own = best(FP32, 2), best(method, 2)
    assert dense is not None
    if method in DENSE:
        return {best(method, ranks) or dense}
    assert own is not None
    return {own} if ranks == 2 else {own, best(method, 8) or 2 * own}


def series(plan: Plan) -> Iterator[tuple[str, str, int]]:
    """Yield section, method and ranks of all curves."""
    for section in plan.trained():
        for method in METHODS:
            for ranks in plan.trained_ranks:
                if source(section, method, ranks) == (method, ranks):
                    yield section, method, ranks


def chosen_rate(section: str, method: str, ranks: int, made: Curves) -> float | None:
    """Return the rate that is best with the first seed; None before all were tried."""
    tried = {
        run.learning_rate: score(record, section)
        for run, record in made.items()
        if (run.section, run.method, run.ranks) == (section, method, ranks)
        and (run.seed, run.steps) == (0, TASKS[section].steps)
    }
    if not tried or first_rates(section, method, ranks, made) - tried.keys():
        return None
    return max(tried, key=lambda rate: tried[rate])


def score(record: Record, section: str) -> float:
    """Return the measure at the end of a run; minus infinity if it diverged."""
    if record["diverged"]:
        return float("-inf")
    return float(record["points"][-1][TASKS[section].measure])


def mean_curve(
    section: str, method: str, ranks: int, seeds: int, made: Curves
) -> list[tuple[int, float]] | None:
    """Return step and mean over the seeds at each evaluation, at the best rate.

    None if a run is missing; nothing if one diverged.
    """
    name, trained = source(section, method, ranks)
    rate = chosen_rate(section, name, trained, made)
    if rate is None:
        return None
    runs = [Run(section, name, trained, rate, each, TASKS[section].steps) for each in range(seeds)]
    if any(run not in made for run in runs):
        return None
    if any(made[run]["diverged"] for run in runs):
        return []
    together = zip(*(made[run]["points"] for run in runs), strict=True)
    measure = TASKS[section].measure
    return [(int(each[0]["step"]), fmean(point[measure] for point in each)) for each in together]


def wanted(plan: Plan, made: Curves) -> list[Run]:
    """Return the runs that are known to be needed and are not there: first seeds first."""
    first: list[Run] = []
    more: list[Run] = []
    for section, method, ranks in series(plan):
        steps = TASKS[section].steps
        rates = sorted(first_rates(section, method, ranks, made))
        first += [Run(section, method, ranks, rate, 0, steps) for rate in rates]
        best = chosen_rate(section, method, ranks, made)
        if best is not None:
            more += [Run(section, method, ranks, best, s, steps) for s in range(1, plan.seeds)]
    return [run for run in dict.fromkeys([*first, *more]) if run not in made]


@dataclass
class Asked:
    """The runs that a store lacks, for a pool."""

    plan: Plan
    kept: results.Store

    def missing(self) -> list[Run]:
        return wanted(self.plan, every(self.kept))

    def order(self, run: Run) -> tuple[str, Any, float, dict[str, Any]]:
        options = {"ranks": run.ranks, "seed": run.seed, "steps": run.steps}
        return TASKS[run.section].task, METHODS[run.method], run.learning_rate, options

    def keep(self, run: Run, outcome: dict[str, Any]) -> Record:
        edition = [EDITION, TASKS[run.section].edition]
        key = {"kind": "curve", "edition": edition, **asdict(run)}
        key["config"] = METHODS[run.method].config()
        record = {"key": key, **results.circumstances(), **outcome}
        self.kept.add(record)
        return record
