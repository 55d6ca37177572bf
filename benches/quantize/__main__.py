"""Choose codes of few bits by calibration, by budgets and in training, and see what they keep.

Trains six models once, packs each at 8, 4, 3 and 2 bits by every method, trains two of them for few
bits, and evaluates all on held-out data; then times the solvers on a large layer. What is finished
is kept: the same command goes on where it was interrupted. At most an hour on two cores; with
--quick eight minutes.
"""

import functools
import sys
from argparse import Namespace

from benches.harness import results
from benches.harness.command import progress
from benches.harness.results import Record
from benches.weights import making, models
from benches.weights.plan import FASHION, Run
from benches.weights.work import Planned, serve

from . import document, show, times
from .packing import Bench
from .plan import ANY, BY_LOSS, FLOAT, METHODS, MODELS, Plan

SCHEMA = 2
"""Raise it when what is measured changes."""


def cost(run: Run) -> float:
    """Return about the seconds of a run on one core."""
    seconds, setting = run.model.seconds, run.setting
    if setting is None:
        return seconds
    if setting != FLOAT and setting.method not in METHODS:
        return seconds * (5 if setting.method == ANY else 2)
    return 1 + seconds * (0.2 if setting.method == BY_LOSS else 0.03)


def make(chosen: Namespace) -> int:
    """Make the runs that are missing, time what is not timed, and write what they show."""
    chosen.out.mkdir(parents=True, exist_ok=True)
    known = models.available(chosen.data)
    plan = Plan([each for each in MODELS if each is not FASHION or each in known], chosen.quick)
    work = Planned(plan, results.Store(chosen.out / "runs.jsonl"), schema=SCHEMA)
    making.make(work, chosen, functools.partial(serve, bench=Bench), cost, described)
    records = work.records()
    found = {
        **results.circumstances(),
        "rows": [document.row(run, each) for run, each in records.items() if run.setting],
        "layers": document.layers(records),
        "times": times.measure(chosen.quick, progress),
    }
    making.write(found, chosen.out, "quantize", show.blocks(found), show.draw)
    if chosen.publish:
        show.publish(found)
    print("\n".join(show.lines(found)))
    return 0


def described(run: Run, record: Record) -> str:
    """Return a finished run in words."""
    if run.setting is None:
        return f"{run.model.name}: trained"
    return f"{run.model.name}: {show.described(run.setting)}: loss {record['loss']:.4f}"


def main(given: list[str] | None = None) -> int:
    quick = "the text transformer alone, in blocks of 64, and a single round of times"
    return making.run(make, "quantize", __doc__, quick, given)


if __name__ == "__main__":
    sys.exit(main())
