"""Change one thing at a time, and train: why updates, which learning rate, what a preset lacks.

Every finished run is kept in the file of results: the same command goes on where it was
interrupted, and the tables of docs/ablations.md are those of the file. All runs together take
about three hours on two cores.
"""

import argparse
import sys
import time
from pathlib import Path

from benches.accuracy.pool import Pool, WorkerError
from benches.accuracy.store import Record
from benches.accuracy.tasks import fashion_data
from benches.harness.machine import cores
from benches.harness.signals import terminate_as_interrupt

from . import tables
from .plan import Run, plan
from .results import RESULTS, Asked, Results
from .worker import serve


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benches.accuracy.ablations",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = list(plan())
    parser.add_argument(
        "--only",
        type=_questions,
        default=names,
        metavar="NAME,...",
        help=f"questions to answer, of {', '.join(names)} (default: all, in this order)",
    )
    parser.add_argument(
        "--jobs", type=int, default=cores(), help="processes of one thread each (default: cores)"
    )
    parser.add_argument(
        "--data", type=Path, metavar="DIR", help="folder with the four files of Fashion-MNIST"
    )
    parser.add_argument(
        "--out", type=Path, default=RESULTS, metavar="FILE", help="results (default: %(default)s)"
    )
    parser.add_argument("--tables", action="store_true", help="train nothing, only write tables")
    chosen = parser.parse_args(given)
    if chosen.jobs < 1:
        parser.error("--jobs must be at least 1")
    return chosen


def _questions(text: str) -> list[str]:
    names = [part.strip() for part in text.split(",") if part.strip()]
    if unknown := [name for name in names if name not in plan()]:
        raise argparse.ArgumentTypeError(
            f"unknown question {', '.join(unknown)}; choose from {', '.join(plan())}"
        )
    return names


class Progress:
    """A line for every finished run, with the time that is left."""

    def __init__(self, count: int) -> None:
        self._left = self._all = count
        self._began = time.monotonic()

    def tell(self, run: Run, record: Record) -> None:
        """Print the line of a run."""
        self._left -= 1
        shown = "diverged"
        if not record["diverged"]:
            point = record["points"][-1]
            shown = ", ".join(f"{name} {point[name]:.4f}" for name in point if name != "step")
        each = (time.monotonic() - self._began) / (self._all - self._left)
        print(
            f"{run.task}: {run.method}, {run.ranks} ranks, rate {run.rate:g}, seed {run.seed}, "
            f"{run.steps} steps: {shown}; {self._left} runs, "
            f"about {round(each * self._left / 60)} min left",
            flush=True,
        )


def main() -> int:
    chosen = arguments()
    try:
        with terminate_as_interrupt():
            return run(chosen)
    except (WorkerError, fashion_data.MissingDataError, OSError) as error:
        print(f"python -m benches.accuracy.ablations: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(
            f"interrupted; finished runs are in {chosen.out}, and the same command "
            "goes on from there",
            file=sys.stderr,
        )
        return 130


def run(chosen: argparse.Namespace) -> int:
    """Make the runs that are missing, and write what they show."""
    questions = plan()
    asked = [] if chosen.tables else [run for name in chosen.only for run in questions[name]]
    kept = Results(chosen.out)
    work = Asked(list(dict.fromkeys(asked)), kept)
    missing = work.missing()
    if any("fashion" in each.task for each in missing):
        fashion_data.folder(chosen.data)  # before anything else: it may have to be fetched
    print(f"{len(kept.made())} runs are there already; {len(missing)} to make", flush=True)
    try:
        if missing:
            chosen.out.parent.mkdir(parents=True, exist_ok=True)
            with Pool(min(chosen.jobs, len(missing)), chosen.data, serve) as pool:
                pool.make(work, Progress(len(missing)).tell)
    finally:
        found = tables.tables(kept.made())
        print("\n".join(line for lines in found.values() for line in ["", *lines]))
        if chosen.out.resolve() == RESULTS:
            tables.write(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
