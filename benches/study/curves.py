"""Which curves are trained, and which are those of `make accuracy`.

A curve does not depend on the link: the arithmetic is the same bit for bit. So each is trained once
with simulated ranks, and those of `make accuracy` with two ranks, which have the same settings, are
taken from its file.
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benches.accuracy import document
from benches.accuracy.methods import METHODS, Method
from benches.accuracy.plan import SECTIONS as TRAINED
from benches.accuracy.store import Record

from . import methods
from .plan import SECTIONS, Plan
from .store import Run, Store, run_key

Curves = Mapping[Run, Record]

SEARCHED, MOST = (methods.BF16, methods.OUR_POWER), 6
"""Methods whose rates `make accuracy` has not searched for, and how many are tried at most."""


@dataclass(frozen=True)
class Series:
    """A method with so many ranks, and the learning rates among which the best is looked for."""

    section: str
    method: str
    ranks: int
    steps: int
    rates: tuple[float, ...]

    def run(self, rate: float, seed: int) -> Run:
        """Return one of its runs."""
        return Run(self.section, self.method, self.ranks, rate, seed, self.steps)


@functools.cache
def _accuracy() -> tuple[dict[tuple[str, str, int], float], list[Record]]:
    """Return the best rates of `make accuracy`, and its runs."""
    found = document.read(document.PUBLISHED)
    best = {
        (each.section.name, result.method, result.ranks): result.learning_rate
        for each in document.summaries(found)
        for result in each.best
    }
    return best, found["runs"]


def _same_as(section: str, method: str) -> str | None:
    """Return the name under which `make accuracy` trains a method."""
    curve = methods.compared(section)[method].curve
    if not isinstance(curve, Method):
        return None
    return next((name for name, each in METHODS.items() if each.config() == curve.config()), None)


def taken(section: str, method: str) -> dict[Run, Record]:
    """Return the runs of `make accuracy` that have the settings of a method."""
    name = _same_as(section, method)
    found = {}
    for record in _accuracy()[1]:
        key = record["key"]
        if name is None or (key["section"], key["method"]) != (section, name):
            continue
        if key["edition"] == TRAINED[section].edition:
            run = Run(section, method, key["ranks"], key["learning_rate"], key["seed"],
                      key["steps"])  # fmt: skip
            found[run] = record
    return found


def all_curves(store: Store, plan: Plan) -> dict[Run, Record]:
    """Return all runs that there are: those of `make accuracy`, and our own."""
    found: dict[Run, Record] = {}
    for section in plan.sections:
        if SECTIONS[section].trained:
            for method, each in methods.compared(section).items():
                if each.curve is not None:
                    found |= taken(section, method)
    return found | store.curves()


def source(section: str, method: str, ranks: int) -> tuple[str, int]:
    """Return the method and the number of ranks whose curve stands for this one.

    Dense averages are the same for any number of ranks, but for rounding, unless statistics of a
    rank's own batch take part.
    """
    chosen = methods.compared(section)[method]
    if chosen.same_curve_as is not None:
        return chosen.same_curve_as, ranks
    if chosen.kind == "dense" and not SECTIONS[section].norm:
        return method, 2
    return method, ranks


def series(plan: Plan) -> list[Series]:
    """Return what has to be there.

    The best rates of `make accuracy` are known. Where it has none for so many ranks, two rates of
    its grid are tried with one seed: the best with two ranks, and the best with eight or else the
    double.
    In bfloat16, training begins with the rate of dense training. PowerSGD tries that one and the
    one that is best for `adam`. `narrowed` goes on from there.
    """
    best = _accuracy()[0]
    found: list[Series] = []
    for section in plan.sections:
        if not SECTIONS[section].trained:
            continue
        steps = plan.steps.get(section, TRAINED[section].steps)
        dense = _best(best, section, methods.FP32, 2)
        assert dense is not None
        for method, each in methods.compared(section).items():
            if each.curve is None:
                continue
            for ranks in plan.trained_ranks:
                if source(section, method, ranks) != (method, ranks):
                    continue
                first = _best(best, section, method, 2)
                if each.kind == "dense":
                    rates: tuple[float, ...] = (_best(best, section, method, ranks) or dense,)
                elif first is None:
                    ours = _best(best, section, "adam(0.01)", 2) if _has(section) else None
                    rates = (dense, ours or dense / 2)
                    if ours == dense:
                        rates = (dense, dense / 2)
                elif ranks == 2:
                    rates = (first,)
                else:
                    rates = (first, _best(best, section, method, 8) or 2 * first)
                found.append(Series(section, method, ranks, steps, tuple(dict.fromkeys(rates))))
    return found


def _has(section: str) -> bool:
    return "adam(0.01)" in methods.compared(section)


def _best(
    best: Mapping[tuple[str, str, int], float], section: str, method: str, ranks: int
) -> float | None:
    name = _same_as(section, method)
    return None if name is None else best.get((section, name, ranks))


def score(record: Record, section: str) -> float:
    """Return the measure at the end of a run; minus infinity if it diverged."""
    if record["diverged"]:
        return float("-inf")
    return float(record["points"][-1][TRAINED[section].measure])


def chosen_rate(each: Series, made: Curves) -> float | None:
    """Return the rate that is best with the first seed; None before all were tried."""
    tried = [each.run(rate, 0) for rate in each.rates]
    if any(run not in made for run in tried):
        return None
    return max(tried, key=lambda run: score(made[run], each.section)).learning_rate


def searched(each: Series, made: Curves) -> Series:
    """Return a series with another rate beyond the end of its grid, while the best is there."""
    rates = sorted(each.rates)
    while len(rates) < MOST:
        rate = chosen_rate(replace(each, rates=tuple(rates)), made)
        if rate == rates[-1]:
            rates.append(2 * rates[-1])
        elif rate == rates[0]:
            rates.insert(0, rates[0] / 2)
        else:
            break
    return replace(each, rates=tuple(rates))


def narrowed(plan: Plan, made: Curves) -> list[Series]:
    """Return the series with the rates that have to be tried, as far as that is known.

    Those of `SEARCHED` go on from the ends of their grids, unless the plan is quick. PowerSGD with
    more ranks has the rate that was best with two.
    """
    found: list[Series] = []
    two: dict[str, Series] = {}
    for each in sorted(series(plan), key=lambda one: one.ranks):
        if each.method == methods.OUR_POWER and each.section in two:
            rate = chosen_rate(two[each.section], made)
            if rate is None:
                continue
            each = replace(each, rates=(rate,))
        elif each.method in SEARCHED and not plan.quick:
            each = searched(each, made)
        if each.method == methods.OUR_POWER and each.ranks == 2:
            two[each.section] = each
        found.append(each)
    return found


def unchanged(plan: Plan, made: Curves) -> dict[tuple[str, str, int], Series]:
    """Return the series of what ``auto`` chooses among, at the best rate of dense training.

    That is the rate of someone who turns it on and changes nothing else, with as many ranks.
    """
    known = {(each.section, each.method, each.ranks): each for each in narrowed(plan, made)}
    found = {}
    for section, like in ((each.section, each.method) for each in known.values()):
        if like != methods.AUTO_LIKE[SECTIONS[section].family]:
            continue
        for method in (*methods.DENSE, like):
            for ranks in plan.trained_ranks:
                each = known.get((section, *source(section, method, ranks)))
                dense = known.get((section, *source(section, methods.FP32, ranks)))
                rate = None if dense is None else chosen_rate(dense, made)
                if each is not None and rate is not None:
                    found[section, method, ranks] = replace(each, rates=(rate,))
    return found


def wanted(plan: Plan, made: Curves) -> list[Run]:
    """Return the runs that are known to be needed and are not there: first seeds first."""
    first: list[Run] = []
    more: list[Run] = []
    if methods.has_auto():
        for each in unchanged(plan, made).values():
            runs = [each.run(rate, seed) for rate in each.rates for seed in range(plan.seeds)]
            first, more = [*first, *runs[:1]], [*more, *runs[1:]]
    for each in narrowed(plan, made):
        first += [each.run(rate, 0) for rate in each.rates]
        rate = chosen_rate(each, made)
        if rate is not None:
            more += [each.run(rate, seed) for seed in range(1, plan.seeds)]
    return [run for run in dict.fromkeys([*first, *more]) if run not in made]


@dataclass
class Asked:
    """The runs that a store lacks, for a pool; none any more once the time is over."""

    plan: Plan
    kept: Store
    over: Callable[[], bool]

    def missing(self) -> list[Run]:
        """Return what is needed and not there."""
        if self.over():
            return []
        return wanted(self.plan, all_curves(self.kept, self.plan))

    def order(self, run: Run) -> Run:
        """Return what a process has to know of a run."""
        return run

    def keep(self, run: Run, outcome: dict[str, Any]) -> Record:
        """Keep what a process has answered."""
        return self.kept.keep(run_key(run), outcome)


def trained(run: Run, data: Path | None, tasks: Any) -> dict[str, Any]:
    """Train in a process of a pool."""
    from benches.accuracy.worker import made_task, train

    method = methods.compared(run.section)[run.method].curve
    return train(
        made_task(TRAINED[run.section].task, data, tasks),
        method,
        run.learning_rate,
        ranks=run.ranks,
        seed=run.seed,
        steps=run.steps,
    )


def serve(pipe: Any, data: Path | None) -> None:
    """Make runs until the pipe is closed."""
    from benches.accuracy.worker import serve_with

    serve_with(trained, pipe, data)
