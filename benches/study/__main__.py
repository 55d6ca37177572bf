"""Over which links, and with how many ranks, compression trains faster than dense DDP.

Times steps of real processes over shaped links, trains what curves are missing, with simulated
ranks, and multiplies. All that is finished is kept in a file, and the same command goes on where
it was interrupted. About an hour and three quarters on two cores that do nothing else, as root or
where user namespaces are allowed; with --quick at most eight minutes.
"""

import argparse
import math
import os
import sys
import time
from collections.abc import Callable
from itertools import groupby
from pathlib import Path

from benches.accuracy.pool import Pool, WorkerError
from benches.accuracy.tasks import fashion_data
from benches.harness import results
from benches.harness.command import INTERRUPTED, terminate_as_interrupt
from benches.harness.machine import cores
from benches.harness.processes import RankError, Ranks, joined
from benches.harness.results import Record, Store

from . import curves, show
from .curves import Run
from .plan import SECTIONS, Cell, Plan, contestants, quick
from .reading import cell_key, timed_cells
from .show import Findings
from .steps import measure, too_large

PARTS = ("curves", "steps")
RESULTS = results.FOLDER / "study.jsonl"
QUICK = results.FOLDER / "study-quick.jsonl"


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make study ARGS=...",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true",
                        help="25 M parameters and the clicks, three links, two ranks, one seed, "
                        "three turns")  # fmt: skip
    parser.add_argument("--only", type=_names, default=[], metavar="NAME,...",
                        help=f"models, of {', '.join(SECTIONS)}, and parts, of {', '.join(PARTS)} "
                        "(default: all)")  # fmt: skip
    parser.add_argument("--minutes", type=float, default=math.inf,
                        help="begin nothing after so many minutes")  # fmt: skip
    parser.add_argument("--jobs", type=int, default=cores(),
                        help="processes that train curves (default: cores)")  # fmt: skip
    parser.add_argument(
        "--data", type=Path, metavar="DIR", help="folder with the four files of Fashion-MNIST"
    )
    parser.add_argument("--results", type=Path, metavar="FILE",
                        help="what is finished (default: benches/results/study.jsonl, or "
                        "study-quick.jsonl)")  # fmt: skip
    parser.add_argument("--out", type=Path, default=Path("study-results"), metavar="DIR",
                        help="folder of tables and map (default: %(default)s)")  # fmt: skip
    parser.add_argument("--publish", action="store_true",
                        help="also write docs/study.md and the README")  # fmt: skip
    parser.add_argument("--show", action="store_true", help="measure nothing")
    chosen = parser.parse_args(given)
    if chosen.jobs < 1 or chosen.minutes <= 0:
        parser.error("--jobs must be at least 1, and --minutes above 0")
    if chosen.publish and chosen.results is not None:
        parser.error("--publish shows what is in benches/results: leave out --results")
    return chosen


def _names(text: str) -> list[str]:
    names = [part.strip() for part in text.split(",") if part.strip()]
    known = [*SECTIONS, *PARTS]
    if unknown := [name for name in names if name not in known]:
        raise argparse.ArgumentTypeError(
            f"unknown name {', '.join(unknown)}; choose from {', '.join(known)}"
        )
    return names


def planned(chosen: argparse.Namespace) -> tuple[Plan, list[str]]:
    """Return the plan, and the parts of it that are made."""
    models = tuple(name for name in SECTIONS if name in chosen.only)
    parts = [part for part in PARTS if part in chosen.only] or list(PARTS)
    if chosen.quick:
        return quick(models) if models else quick(), parts
    return Plan(models) if models else Plan(), parts


def main(given: list[str] | None = None) -> int:
    chosen = arguments(given)
    plan, parts = planned(chosen)
    kept = Store(chosen.results or (QUICK if chosen.quick else RESULTS))
    try:
        with terminate_as_interrupt():
            return run(plan, [] if chosen.show else parts, kept, chosen)
    except (WorkerError, RankError, fashion_data.MissingDataError, OSError) as error:
        print(f"make study: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(
            f"make study: interrupted; what is finished is in {kept.path}, and the same command "
            "goes on from there",
            file=sys.stderr,
        )
        return INTERRUPTED


def run(plan: Plan, parts: list[str], kept: Store, chosen: argparse.Namespace) -> int:
    """Make what is missing, and write what it shows."""
    end = time.monotonic() + 60 * chosen.minutes

    def over() -> bool:
        return time.monotonic() > end

    if any(section == "fashion" for section in plan.sections) and parts:
        fashion_data.folder(chosen.data)  # before anything else: it may have to be fetched
    try:
        if "steps" in parts:
            time_steps(plan, kept, chosen.data, over)
        if "curves" in parts:
            train_curves(plan, kept, chosen, over)
    finally:
        if text := show.write(Findings.of(plan, kept), chosen.out):
            print(f"\n{text}\nWritten to {chosen.out}: study.md, {show.FIGURE}")
    if chosen.publish:
        # What a command was asked to make does not count: the page depends on the data alone.
        show.publish(Findings.of(quick() if chosen.quick else Plan(), kept))
    return 0


def train_curves(
    plan: Plan, kept: Store, chosen: argparse.Namespace, over: Callable[[], bool]
) -> None:
    """Train the curves that are missing."""
    asked = curves.Asked(plan, kept, over)

    def tell(run: Run, record: Record) -> None:
        shown = "diverged"
        if not record["diverged"]:
            shown = f"{100 * curves.score(record, run.section):.2f} after {run.steps} steps"
        print(
            f"{run.section}: {run.method}, {run.ranks} ranks, rate {run.learning_rate:.4g}, "
            f"seed {run.seed}: {shown}; at least {len(asked.missing())} left",
            flush=True,
        )

    if missing := asked.missing():
        with Pool(min(chosen.jobs, len(missing)), chosen.data) as pool:
            pool.make(asked, tell)


def time_steps(plan: Plan, kept: Store, data: Path | None, over: Callable[[], bool]) -> None:
    """Time the cells that are missing, all methods of a cell in turns."""
    there = timed_cells(plan, kept)
    missing = [cell for cell in plan.cells() if cell not in there]
    for count, cells in groupby(missing, key=lambda each: each.ranks):
        if over():
            return
        with joined(count, "benches.study.rank") as (ranks, why_not):
            if why_not is not None:
                print(f"no shaped link, so only the loopback device: {why_not}")
            loaded = ""
            for cell in cells:
                if over():
                    return
                if why_not is not None and cell.link is not None:
                    continue
                if cell.section != loaded:
                    if too_large(cell):
                        print(f"{cell}: not timed, there is not enough free memory", flush=True)
                        continue
                    ranks.shape(None)
                    listed, folder = contestants(cell.section), data and str(data)
                    ranks.ask(do="load", section=cell.section, contestants=listed, data=folder)
                    loaded = cell.section
                time_cell(ranks, cell, plan, kept, shaped=why_not is None)


def time_cell(ranks: Ranks, cell: Cell, plan: Plan, kept: Store, *, shaped: bool) -> None:
    """Time all methods of a cell, and keep it."""
    title = f"{cell.section}, {cell.ranks} ranks, {show.link_name(cell.link)}"
    began, load = time.monotonic(), os.getloadavg()
    rows = measure(ranks, plan, cell, lambda text: progress(f"{title}: {text}"))
    progress("")
    seconds = round(time.monotonic() - began, 1)
    found = {"rows": rows, "shaped": shaped, "cell_seconds": seconds,
             "load": [load, os.getloadavg()]}  # fmt: skip
    kept.add({"key": cell_key(cell, plan), **results.circumstances(), **found})
    print(f"{title}: {seconds:.0f} s", flush=True)


def progress(text: str) -> None:
    """Overwrite one line of a terminal; elsewhere say nothing."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K  {text}", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
