"""Pack trained models at a few bits a weight, and time what reads them.

Trains three models once, packs each at 8, 4, 3 and 2 bits with every fit and three blocks, and
evaluates it on held-out data; then times the kernel, packing and files beside what torch has, and
what is installed of torchao, bitsandbytes, optimum-quanto and gguf. What is finished is kept: the
same command goes on where it was interrupted. At most fifteen minutes on two cores; with --quick
three, and one when the model is trained.
"""

import functools
import sys
from argparse import Namespace
from typing import Any

from benches.harness import results
from benches.harness.command import progress
from benches.harness.results import Record

from . import clips, kernel, making, models, show
from .packing import bench
from .plan import Plan, Run
from .work import Planned, serve

EVALUATION = 1.5
"""About the seconds of one on a core."""


def cost(run: Run) -> float:
    """Return about the seconds of a run on one core."""
    return run.model.seconds if run.setting is None else EVALUATION


def make(chosen: Namespace) -> int:
    """Make the runs that are missing, time what is not timed, and write what they show."""
    chosen.out.mkdir(parents=True, exist_ok=True)
    plan = Plan(models.available(chosen.data), chosen.quick)
    work = Planned(plan, results.Store(chosen.out / "runs.jsonl"))
    making.make(work, chosen, functools.partial(serve, bench=bench), cost, described)
    document = {
        **results.circumstances(),
        "rows": [row(run, record) for run, record in work.records().items() if run.setting],
        "clips": [] if chosen.quick else clips.measure(),
        "kernel": kernel.measure(chosen.quick, progress),
    }
    making.write(document, chosen.out, "weights", show.blocks(document), show.draw)
    if chosen.publish:
        show.publish(document)
    print("\n".join(show.lines(document)))
    return 0


def row(run: Run, record: Record) -> dict[str, Any]:
    """Return a record as it is published."""
    names = ("loss", "accuracy", "parameters", "entries", "packed_bytes", "bytes")
    return {
        "model": run.model.name,
        "title": run.model.title,
        "setting": record["key"]["setting"],
        **{name: record[name] for name in names},
    }


def described(run: Run, record: Record) -> str:
    """Return a finished run in words."""
    if run.setting is None:
        return f"{run.model.name}: trained"
    what = show.named(run.setting).replace("`", "")
    return f"{run.model.name}: {what}: loss {record['loss']:.4f}"


def main(given: list[str] | None = None) -> int:
    quick = "the text transformer alone, with one fit and block, and one row"
    return making.run(make, "weights", __doc__, quick, given)


if __name__ == "__main__":
    sys.exit(main())
