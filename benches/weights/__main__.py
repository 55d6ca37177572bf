"""Pack trained models at a few bits a weight, and time what reads them.

Trains three models once, packs each at 8, 4, 3 and 2 bits with every fit and three blocks, and
evaluates it on held-out data; then times the kernel, packing and files beside what torch has, and
what is installed of torchao, bitsandbytes, optimum-quanto and gguf. What is finished is kept: the
same command goes on where it was interrupted. At most fifteen minutes on two cores; with --quick
three, and one when the model is trained.
"""

import argparse
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benches.accuracy.pool import Pool, WorkerError
from benches.accuracy.tasks import fashion_data
from benches.harness import results
from benches.harness.command import INTERRUPTED, progress, terminate_as_interrupt
from benches.harness.machine import cores
from benches.harness.results import Record

from . import clips, kernel, models, show
from .plan import Plan, Run
from .work import Planned, serve

EVALUATION = 1.5
"""About the seconds of one on a core."""


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make weights ARGS=...",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    # fmt: off
    parser.add_argument("--quick", action="store_true",
                        help="the text transformer alone, with one fit and block, and one row")
    parser.add_argument("--jobs", type=int, default=cores(),
                        help="processes of one thread each (default: cores)")
    parser.add_argument("--data", type=Path, metavar="DIR",
                        help="folder with the four files of Fashion-MNIST")
    parser.add_argument("--out", type=Path, default=Path("weights-results"), metavar="DIR",
                        help="folder of data, tables and picture (default: %(default)s)")
    parser.add_argument("--publish", action="store_true",
                        help="also write docs/weights.md and benches/results/weights.json")
    # fmt: on
    chosen = parser.parse_args(given)
    if chosen.jobs < 1:
        parser.error("--jobs must be at least 1")
    if chosen.publish and chosen.quick:
        parser.error("--publish writes a whole run: leave out --quick")
    return chosen


@dataclass
class Clock:
    """How much is left, from what the finished runs took; ``expected`` in seconds of one core."""

    expected: float
    jobs: int
    done: float = 0.0
    began: float = field(default_factory=time.monotonic)

    def left(self) -> str:
        """Return the time left in words."""
        ahead = self.expected - self.done
        spent = time.monotonic() - self.began
        seconds = ahead * (spent / self.done if self.done else 1 / self.jobs)
        return f"about {seconds / 60:.0f} min" if seconds >= 90 else f"about {seconds:.0f} s"


def cost(run: Run) -> float:
    """Return about the seconds of a run on one core."""
    return run.model.seconds if run.setting is None else EVALUATION


def make(chosen: argparse.Namespace) -> int:
    """Make the runs that are missing, time what is not timed, and write what they show."""
    chosen.out.mkdir(parents=True, exist_ok=True)
    plan = Plan(models.available(chosen.data), chosen.quick)
    work = Planned(plan, results.Store(chosen.out / "runs.jsonl"))
    runs = [run for run in plan.runs() if run not in work.records()]
    clock = Clock(sum(map(cost, runs)), chosen.jobs)
    if runs:
        print(f"{len(runs)} runs; {clock.left()} left, and then timings", flush=True)

        def tell(run: Run, record: Record) -> None:
            clock.done += cost(run)
            print(f"{described(run, record)}; {clock.left()} left", flush=True)

        with Pool(chosen.jobs, chosen.data, serve) as pool:
            pool.make(work, tell)
    document = {
        **results.circumstances(),
        "rows": [row(run, record) for run, record in work.records().items() if run.setting],
        "clips": [] if chosen.quick else clips.measure(),
        "kernel": kernel.measure(chosen.quick, progress),
    }
    progress("")
    results.write(document, chosen.out / "weights.json")
    text = "\n\n".join(show.blocks(document).values())
    (chosen.out / "weights.md").write_text(f"{text}\n", encoding="utf-8")
    show.draw(document, chosen.out / show.FIGURE)
    print(f"\n{text}\n\nWritten to {chosen.out}: weights.json, weights.md, {show.FIGURE}\n")
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
    chosen = arguments(given)
    try:
        with terminate_as_interrupt():
            return make(chosen)
    except (WorkerError, fashion_data.MissingDataError, OSError) as error:
        print(f"make weights: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(
            "make weights: interrupted; what is finished is kept, and the same command goes on "
            "from there",
            file=sys.stderr,
        )
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
