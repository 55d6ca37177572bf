"""Whole runs over a shaped link, beside what the study computes for them.

The study multiplies steps from curves with times of steps. Here real ranks train to the end over
one of its links: the loss must be that of the curve, and the time that of the product.
"""

from collections.abc import Mapping
from typing import Any

from benches.accuracy.plan import SECTIONS as TRAINED
from benches.accuracy.store import Record
from benches.accuracy.tables import head, row

from . import curves, methods
from .aims import link_name
from .plan import Cell, Plan
from .reading import step_time
from .steps import Ranks
from .store import Run, Store, Whole

SECTION, RANKS, LINK, SEED = "clicks", 2, 100_000_000, 0
METHODS = ("adam(0.01)", methods.BF16, methods.FP32)


def wanted(plan: Plan, store: Store) -> list[Whole]:
    """Return the whole runs that are not there, at the best learning rates."""
    if SECTION not in plan.sections or RANKS not in plan.ranks or LINK not in plan.links:
        return []
    made = curves.all_curves(store, plan)
    found = []
    for each in curves.narrowed(curves.series(plan), made):
        if (each.section, each.ranks) == (SECTION, RANKS) and each.method in METHODS:
            rate = curves.chosen_rate(each, made)
            if rate is not None:
                found.append(Whole(SECTION, each.method, RANKS, LINK, rate, SEED, each.steps))
    there = store.wholes()
    found.sort(key=lambda each: METHODS.index(each.method))
    return [each for each in found if each not in there]


def train(ranks: Ranks, whole: Whole) -> dict[str, Any]:
    """Train, and return the seconds of all steps, and what the task measures in the end."""
    ranks.shape(whole.link)
    answers = ranks.whole(
        section=whole.section,
        method=whole.method,
        rate=whole.learning_rate,
        steps=whole.steps,
        seed=whole.seed,
    )
    seconds = max(each["seconds"] for each in answers)
    identical = len({each["digest"] for each in answers}) == 1
    measured = {name: answers[0][name] for name in ("loss", TRAINED[whole.section].measure)}
    return {"seconds": round(seconds, 3), "replicas_identical": identical, **measured}


def table(store: Store, plan: Plan, cells: Mapping[Cell, Record], made: curves.Curves) -> list[str]:
    """Return each whole run beside the product and the curve; nothing if there is none."""
    lines = head(
        "whole run", "steps", "seconds", "steps x step time", "held-out loss", "of the curve"
    )
    before = len(lines)
    for whole, record in store.wholes().items():
        cell = cells.get(Cell(whole.section, whole.ranks, whole.link))
        run = Run(whole.section, whole.method, whole.ranks, whole.learning_rate, whole.seed,
                  whole.steps)  # fmt: skip
        if cell is None or run not in made:
            continue
        timed = step_time(cell["rows"], whole.section, whole.method)
        lines.append(
            row(
                f"{whole.method}, {whole.section}, {whole.ranks} ranks, {link_name(whole.link)}",
                str(whole.steps),
                f"{record['seconds']:.1f}",
                f"{whole.steps * timed.seconds:.1f}",
                f"{record['loss']:.6f}",
                f"{made[run]['points'][-1]['loss']:.6f}",
            )
        )
    return lines if len(lines) > before else []
