"""What the commands that pack trained models share: arguments, runs, and what is left of them."""

import argparse
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benches.accuracy.pool import Pool, Target, WorkerError
from benches.accuracy.tasks import fashion_data
from benches.harness import results
from benches.harness.command import INTERRUPTED, progress, terminate_as_interrupt
from benches.harness.machine import cores
from benches.harness.results import Record

from .plan import Run
from .work import Planned


def run(
    make: Callable[[Namespace], int],
    name: str,
    about: str | None,
    quick: str,
    given: list[str] | None,
) -> int:
    """Run the command ``make NAME``; return its exit status."""
    chosen = _arguments(name, about, quick, given)
    try:
        with terminate_as_interrupt():
            return make(chosen)
    except (WorkerError, fashion_data.MissingDataError, OSError) as error:
        print(f"make {name}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(
            f"make {name}: interrupted; what is finished is kept, and the same command goes on "
            "from there",
            file=sys.stderr,
        )
        return INTERRUPTED


def _arguments(name: str, about: str | None, quick: str, given: list[str] | None) -> Namespace:
    parser = argparse.ArgumentParser(
        prog=f"make {name} ARGS=...",
        description=about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    # fmt: off
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument("--jobs", type=int, default=cores(),
                        help="processes of one thread each (default: cores)")
    parser.add_argument("--data", type=Path, metavar="DIR",
                        help="folder with the four files of Fashion-MNIST")
    parser.add_argument("--out", type=Path, default=Path(f"{name}-results"), metavar="DIR",
                        help="folder of data, tables and picture (default: %(default)s)")
    parser.add_argument("--publish", action="store_true",
                        help=f"also write docs/weights-measured.md and benches/results/{name}.json")
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


def make(
    work: Planned,
    chosen: Namespace,
    target: Target,
    cost: Callable[[Run], float],
    described: Callable[[Run, Record], str],
) -> None:
    """Make the runs that are missing, and say after each what it gave and how long it takes yet."""
    runs = [run for run in work.plan.runs() if run not in work.records()]
    clock = Clock(sum(map(cost, runs)), chosen.jobs)
    if runs:
        print(f"{len(runs)} runs; {clock.left()} left, and then timings", flush=True)

        def tell(run: Run, record: Record) -> None:
            clock.done += cost(run)
            print(f"{described(run, record)}; {clock.left()} left", flush=True)

        with Pool(chosen.jobs, chosen.data, target) as pool:
            pool.make(work, tell)


def write(
    document: Mapping[str, Any],
    folder: Path,
    name: str,
    blocks: Mapping[str, str],
    draw: Callable[[Mapping[str, Any], Path], None],
) -> None:
    """Write the data, the tables and the picture to a folder, and show the tables."""
    progress("")
    results.write(document, folder / f"{name}.json")
    text = "\n\n".join(blocks.values())
    (folder / f"{name}.md").write_text(f"{text}\n", encoding="utf-8")
    draw(document, folder / f"{name}.svg")
    print(f"\n{text}\n\nWritten to {folder}: {name}.json, {name}.md, {name}.svg\n")
