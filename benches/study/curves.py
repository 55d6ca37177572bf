"""The curves of training: those of `make accuracy`, and those that are recorded in the store.

A curve does not depend on the link: the arithmetic is the same bit for bit. So it comes from
simulated ranks, and is combined with the steps of real ones.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from benches.accuracy.methods import METHODS as ACCURACY
from benches.accuracy.plan import SECTIONS as TASKS
from benches.harness import results
from benches.harness.results import Record

from .plan import DENSE, METHODS, POWER_CURVE, SECTIONS, TORCH_POWER

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
