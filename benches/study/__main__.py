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
from dataclasses import replace
from itertools import groupby
from pathlib import Path

from benches.accuracy.pool import Pool, WorkerError
from benches.accuracy.store import Record
from benches.accuracy.tasks import fashion_data
from benches.compare.blocks import ROOT
from benches.harness.machine import cores
from benches.harness.signals import terminate_as_interrupt

from . import curves, methods, page, store, whole
from .aims import link_name
from .page import Findings
from .plan import SECTIONS, Cell, Plan, quick
from .progress import Left
from .steps import StudyRanks, measure, show_progress, too_large
from .store import Run, Store

PARTS = ("curves", "steps", "whole")


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make study ARGS=...",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--quick", action="store_true",
        help="25 M parameters and the clicks, three links, two ranks, one seed, three turns",
    )  # fmt: skip
    parser.add_argument(
        "--only", type=_names, default=None, metavar="NAME,...",
        help=f"models, of {', '.join(SECTIONS)}, and parts, of {', '.join(PARTS)} "
        "(default: all but fashion-sgd)",
    )  # fmt: skip
    parser.add_argument(
        "--minutes", type=float, default=math.inf, help="begin nothing after so many minutes"
    )
    parser.add_argument(
        "--jobs", type=int, default=cores(),
        help="processes of one thread each that train curves (default: cores)",
    )  # fmt: skip
    parser.add_argument(
        "--data", type=Path, metavar="DIR", help="folder with the four files of Fashion-MNIST"
    )
    parser.add_argument(
        "--results", type=Path, metavar="FILE",
        help="what is finished (default: benches/results/study.jsonl, or study-quick.jsonl)",
    )  # fmt: skip
    parser.add_argument(
        "--out", type=Path, default=Path("study-results"), metavar="DIR",
        help="folder of tables and map (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--publish", action="store_true",
        help="also write docs/study.md and the README, from all that is there",
    )  # fmt: skip
    parser.add_argument("--show", action="store_true", help="measure nothing")
    chosen = parser.parse_args(given)
    if chosen.jobs < 1:
        parser.error("--jobs must be at least 1")
    if chosen.minutes <= 0:
        parser.error("--minutes must be above 0")
    if chosen.publish and chosen.results is not None:
        parser.error(
            f"--publish shows {store.RESULTS.relative_to(ROOT)}, or with --quick "
            f"{store.QUICK.relative_to(ROOT)}: leave out --results, or --publish"
        )
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
    names = chosen.only or []
    models = [name for name in SECTIONS if name in names] or None
    parts = [part for part in PARTS if part in names] or list(PARTS)
    if chosen.quick:
        return quick(models), parts
    plan = Plan()
    return (replace(plan, sections=models) if models else plan), parts


def main(given: list[str] | None = None) -> int:
    chosen = arguments(given)
    plan, parts = planned(chosen)
    path = chosen.results or (store.QUICK if chosen.quick else store.RESULTS)
    kept = Store(path, None if chosen.show else store.circumstances())
    try:
        with terminate_as_interrupt():
            return run(plan, [] if chosen.show else parts, kept, chosen)
    except (WorkerError, fashion_data.MissingDataError, OSError, RuntimeError) as error:
        print(f"make study: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(
            f"make study: interrupted; what is finished is in {kept.path}, and the same command "
            "goes on from there",
            file=sys.stderr,
        )
        return 130


def run(plan: Plan, parts: list[str], kept: Store, chosen: argparse.Namespace) -> int:
    """Make what is missing, and write what it shows."""
    began = time.monotonic()

    def over(needed: float = 0.0) -> bool:
        return bool(time.monotonic() + needed > began + 60 * chosen.minutes)

    def late(needed: float) -> bool:
        return over(needed) or time.monotonic() + needed > began + plan.whole_by

    kept.path.parent.mkdir(parents=True, exist_ok=True)
    left = Left(plan, kept, chosen.jobs)
    if parts:
        print(f"{left.there()}; {left.text()} left", flush=True)
    try:
        if "steps" in parts:
            time_steps(plan, kept, chosen.data, left, over)
        if "curves" in parts:
            train_curves(plan, kept, chosen, left, over)
        if "whole" in parts:
            train_whole(plan, kept, chosen.data, over, late)
    finally:
        findings = Findings.of(plan, kept)
        lines = page.write(findings, chosen.out)
        print("\n".join(["", *lines]))
        if lines:
            print(f"Written to {chosen.out}: study.md, {page.FIGURE}")
    if chosen.publish:
        every = Store(kept.path)
        page.publish(Findings.of(page.shown(chosen.quick, every), every))
    return 0


def train_curves(
    plan: Plan, kept: Store, chosen: argparse.Namespace, left: Left, over: Callable[[], bool]
) -> None:
    """Train the curves that are missing."""
    asked = curves.Asked(plan, kept, over)
    missing = asked.missing()
    if not missing:
        return
    if any(SECTIONS[each.section].task == "fashion" for each in missing):
        fashion_data.folder(chosen.data)  # before anything else: it may have to be fetched

    def tell(run: Run, record: Record) -> None:
        shown = "diverged"
        if not record["diverged"]:
            shown = f"{100 * curves.score(record, run.section):.2f} after {run.steps} steps"
        print(
            f"{run.section}: {run.method}, {run.ranks} ranks, rate {run.learning_rate:.4g}, "
            f"seed {run.seed}: {shown}; {left.text()} left",
            flush=True,
        )

    with Pool(min(chosen.jobs, len(missing)), chosen.data, curves.serve) as pool:
        pool.make(asked, tell)


def time_steps(
    plan: Plan, kept: Store, data: Path | None, left: Left, over: Callable[[], bool]
) -> None:
    """Time the cells that are missing."""
    there = kept.cells(plan)
    missing = [cell for cell in plan.cells() if cell not in there]
    if any(SECTIONS[cell.section].task == "fashion" for cell in missing):
        fashion_data.folder(data)
    for count, cells in groupby(missing, key=lambda each: each.ranks):
        if over():
            return
        with StudyRanks(count, data) as ranks:
            if ranks.why_not is not None:
                print(f"no shaped link, so only the loopback device: {ranks.why_not}")
            for cell in cells:
                if over():
                    return
                if ranks.why_not is None or cell.link is None:
                    time_cell(ranks, cell, plan, kept, left)


def time_cell(ranks: StudyRanks, cell: Cell, plan: Plan, kept: Store, left: Left) -> None:
    """Time all methods of a cell, and keep it."""
    title = f"{cell.section}, {cell.ranks} ranks, {link_name(cell.link)}"
    began, load = time.monotonic(), os.getloadavg()
    if not ranks.loaded(cell.section):
        why = too_large(cell)
        if why is not None:
            print(f"{title}: not timed, because {why}", flush=True)
            return
    rows = measure(ranks, plan, cell, lambda text: show_progress(f"{title}: {text}"))
    show_progress("")
    seconds = round(time.monotonic() - began, 1)
    found = {"rows": rows, "shaped": ranks.why_not is None, "cell_seconds": seconds,
             "load": [load, os.getloadavg()]}  # fmt: skip
    kept.keep(store.cell_key(cell, plan), found)
    print(f"{title}: {seconds:.0f} s; {left.text()} left", flush=True)


def train_whole(
    plan: Plan,
    kept: Store,
    data: Path | None,
    over: Callable[[], bool],
    late: Callable[[float], bool],
) -> None:
    """Make the whole runs that are missing: of dense methods only those that are not too late."""
    missing = whole.wanted(plan, kept)
    if not missing or over():
        return
    with StudyRanks(whole.RANKS, data) as ranks:
        if ranks.why_not is not None:
            return
        for each, needed in missing:
            if over() or (each.method in methods.DENSE and late(needed)):
                continue
            found = whole.train(ranks, each)
            kept.keep(store.whole_key(each), found)
            print(
                f"whole run, {each.method}: {found['seconds']:.0f} s, where the product is "
                f"{needed:.0f} s",
                flush=True,
            )


if __name__ == "__main__":
    sys.exit(main())
