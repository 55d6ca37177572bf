"""Over which links, and with how many ranks, compression trains faster than dense DDP.

Times steps of real processes over shaped links, and multiplies by the steps that recorded curves
of training take, among them those of `make accuracy`. All that is finished is kept in a file, and
the same command goes on where it was interrupted. About an hour on two cores that do nothing else,
as root or where user namespaces are allowed.
"""

import argparse
import os
import sys
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

from benches.accuracy.tasks import fashion_data
from benches.harness import results
from benches.harness.command import command_line, conduct, progress
from benches.harness.processes import Ranks, joined
from benches.harness.results import Store

from . import show
from .plan import DENSE, SECTIONS, Cell, Plan, contestants
from .reading import cell_key, timed_cells
from .show import Findings

RESULTS = results.FOLDER / "study.jsonl"
PLENTY = 4.0
"""Seconds after which a contestant that has had two turns takes no more."""

Listed = list[tuple[str, str, float | None]]


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    parser = command_line("make study ARGS=...", __doc__)
    # fmt: off
    parser.add_argument("--only", nargs="+", choices=SECTIONS, metavar="MODEL",
                        help=f"of {', '.join(SECTIONS)}")
    parser.add_argument("--data", type=Path, metavar="DIR",
                        help="folder with the four files of Fashion-MNIST")
    parser.add_argument("--results", type=Path, metavar="FILE", help="what is finished (default: "
                        "benches/results/study.jsonl)")
    parser.add_argument("--out", type=Path, default=Path("study-results"), metavar="DIR",
                        help="folder of tables and map (default: %(default)s)")
    parser.add_argument("--publish", action="store_true",
                        help="also write docs/study.md and the README, from all that is there")
    parser.add_argument("--show", action="store_true", help="measure nothing")
    # fmt: on
    chosen = parser.parse_args(given)
    if chosen.publish and chosen.results is not None:
        parser.error("--publish shows what is in benches/results: leave out --results")
    return chosen


def main(given: list[str] | None = None) -> int:
    chosen = arguments(given)
    plan = Plan()
    if chosen.only:
        plan = replace(plan, sections=tuple(name for name in SECTIONS if name in chosen.only))
    kept = Store(chosen.results or RESULTS)
    return conduct(
        "make study",
        lambda: run(plan, kept, chosen),
        (fashion_data.MissingDataError,),
        f"what is finished is in {kept.path}, and the same command goes on from there",
    )


def run(plan: Plan, kept: Store, chosen: argparse.Namespace) -> int:
    if "fashion" in plan.sections and not chosen.show:
        fashion_data.folder(chosen.data)  # before anything else: it may have to be fetched
    try:
        if not chosen.show:
            time_steps(plan, kept, chosen.data)
    finally:
        if text := show.write(Findings.of(plan, kept), chosen.out):
            print(f"\n{text}\nWritten to {chosen.out}: study.md, {show.FIGURE}")
    if chosen.publish:
        # What a command was asked to make does not count: the page depends on the data alone.
        show.publish(Findings.of(Plan(), kept))
    return 0


def time_steps(plan: Plan, kept: Store, data: Path | None) -> None:
    """Time the cells that are missing, all methods of a cell in turns."""
    there = timed_cells(plan, kept)
    missing = [cell for cell in plan.cells() if cell not in there]
    for count, cells in groupby(missing, key=lambda each: each.ranks):
        with joined(count, "benches.study.rank") as (ranks, why_not):
            if why_not is not None:
                print(f"no shaped link, so only the loopback device: {why_not}")
            loaded = ""
            for cell in cells:
                if why_not is not None and cell.link is not None:
                    continue
                if cell.section != loaded:
                    ranks.shape(None)
                    listed, folder = contestants(cell.section), data and str(data)
                    ranks.ask(do="load", section=cell.section, contestants=listed, data=folder)
                    loaded = cell.section
                title = f"{cell.section}, {cell.ranks} ranks, {show.link_name(cell.link)}"
                load = os.getloadavg()
                rows = measure(ranks, plan, cell, title)
                progress("")
                found = {"rows": rows, "shaped": why_not is None, "load": [load, os.getloadavg()]}
                kept.add({"key": cell_key(cell, plan), **results.circumstances(), **found})
                print(f"{title}: timed", flush=True)


def measure(ranks: Ranks, plan: Plan, cell: Cell, title: str) -> list[dict[str, Any]]:
    """Return a row for each contestant of a cell, with the seconds of its steps.

    All take turns, each time in another order; a step takes as long as its slowest rank. Of a dense
    method with buckets of several sizes only the best goes on where steps are long; rows of the
    others say so.
    """
    listed, count = contestants(cell.section), SECTIONS[cell.section].steps_a_turn
    ranks.shape(cell.link)
    seconds: dict[str, list[float]] = {name: [] for name, _, _ in listed}
    for turn in range(-1, plan.turns):
        at = turn % len(listed)
        for name, method, _ in [*listed[at:], *listed[:at]]:
            if turn > 0 and done(name, method, listed, seconds, count):
                continue
            if turn < 0 and cell.link is not None and method in DENSE:
                continue  # they keep nothing that a first turn would settle
            progress(f"{title}: {name}, turn {max(0, turn + 1)} of {plan.turns}")
            answers = ranks.ask(do="step", contestant=name, steps=count)
            if turn >= 0:
                seconds[name].append(max(answers))
    return [
        {
            "contestant": name,
            "method": method,
            "bucket": bucket,
            "dropped": plan.turns > 1 and len(seconds[name]) == 1,
            "seconds": [float(f"{each:.4g}") for each in seconds[name]],
        }
        for name, method, bucket in listed
    ]


def done(
    name: str, method: str, listed: Listed, seconds: dict[str, list[float]], count: int
) -> bool:
    """Tell whether a contestant has been timed for long enough."""
    if sum(seconds[name]) * count < PLENTY:
        return False
    if len(seconds[name]) > 1:
        return True
    rivals = [seconds[other][0] for other, same, _ in listed if same == method]
    return seconds[name][0] > min(rivals)


if __name__ == "__main__":
    sys.exit(main())
