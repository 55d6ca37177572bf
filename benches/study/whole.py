"""Whole runs over a shaped link, beside what the study computes for them.

The study multiplies steps from curves with times of steps. Here real ranks train to the end over
one of its links: the time should be that of the product, and the loss near that of the curve.
"""

import os
from collections.abc import Mapping
from typing import Any

from benches.accuracy.plan import SECTIONS as TRAINED
from benches.accuracy.store import Record
from benches.accuracy.tables import head, row

from . import curves, methods
from .aims import link_name
from .plan import Cell, Plan
from .steps import StudyRanks
from .store import Run, Store, Whole
from .times import processor_time, step_time

SECTION, RANKS, LINK, SEED = "clicks", 2, 100_000_000, 0
METHODS = ("adam(0.01)", methods.BF16, methods.FP32)


def wanted(plan: Plan, store: Store) -> list[tuple[Whole, float]]:
    """Return the whole runs that are not there, and how many seconds they should take.

    They have the best learning rates, and the buckets that are best in the cell.
    """
    cell = Cell(SECTION, RANKS, LINK)
    timed = store.cells(plan).get(cell)
    if timed is None:
        return []
    made = curves.all_curves(store, plan)
    found = []
    for each in curves.narrowed(plan, made):
        rate = curves.chosen_rate(each, made)
        if (each.section, each.ranks) == (SECTION, RANKS) and each.method in METHODS and rate:
            step = step_time(timed["rows"], SECTION, each.method)
            whole = Whole(SECTION, each.method, RANKS, LINK, step.bucket, rate, SEED, each.steps)
            found.append((whole, each.steps * step.seconds))
    there = store.wholes()
    found.sort(key=lambda each: METHODS.index(each[0].method))
    return [each for each in found if each[0] not in there]


def train(ranks: StudyRanks, whole: Whole) -> dict[str, Any]:
    """Train, and return the seconds of all steps, and what the task measures in the end."""
    ranks.shape(whole.link)
    load = os.getloadavg()
    answers = ranks.whole(
        section=whole.section,
        method=whole.method,
        bucket=whole.bucket,
        rate=whole.learning_rate,
        steps=whole.steps,
        seed=whole.seed,
    )
    slowest = max(answers, key=lambda each: float(each["seconds"]))
    return {
        "seconds": round(slowest["seconds"], 3),
        "median": float(f"{slowest['median']:.4g}"),
        "processor_seconds": float(f"{sum(each['cpu'] for each in answers) / len(answers):.4g}"),
        "replicas_identical": len({each["digest"] for each in answers}) == 1,
        "load": [load, os.getloadavg()],
        **{name: answers[0][name] for name in ("loss", TRAINED[whole.section].measure)},
    }


def table(store: Store, plan: Plan, cells: Mapping[Cell, Record], made: curves.Curves) -> list[str]:
    """Return each whole run beside the product and the curve; nothing if there is none."""
    lines = head(
        "whole run",
        "steps",
        "seconds",
        "steps x step time",
        "**ratio**",
        "median step: whole, timed",
        "processor: whole, timed",
        "load",
        "held-out loss",
        "of the curve",
    )
    before = len(lines)
    for whole, record in store.wholes().items():
        cell = cells.get(Cell(whole.section, whole.ranks, whole.link))
        if cell is None:
            continue
        run = Run(whole.section, whole.method, whole.ranks, whole.learning_rate, whole.seed,
                  whole.steps)  # fmt: skip
        timed = step_time(cell["rows"], whole.section, whole.method)
        worked = processor_time(cell["rows"], whole.method, timed.bucket)
        product = whole.steps * timed.seconds
        curve = f"{made[run]['points'][-1]['loss']:.6f}" if run in made else ""
        lines.append(
            row(
                f"{whole.method}, {whole.section}, {whole.ranks} ranks, {link_name(whole.link)}",
                str(whole.steps),
                f"{record['seconds']:.1f}",
                f"{product:.1f}",
                f"**{record['seconds'] / product:.2f}**",
                f"{1e3 * record['median']:.3g}, {1e3 * timed.seconds:.3g} ms",
                f"{1e3 * record['processor_seconds']:.3g}, {1e3 * worked:.3g} ms",
                f"{record['load'][0][0]:.1f}",
                f"{record['loss']:.6f}",
                curve,
            )
        )
    return lines if len(lines) > before else []
