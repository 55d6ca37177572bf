"""Measure gradwire and its peers: ``make bench``, or ``python -m benches.compare --help``."""

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from benches import stopping

from . import aims, break_even, hooks, ours, peers, plan, record, sections, tables
from .contestant import Contestant
from .rounds import Case, Outcome, run

# Everyone keeps a residual, most of them more: what a case takes, with room for what torch makes.
BYTES_PER_ENTRY = 180


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench ARGS=...", description=__doc__)
    parser.add_argument(
        "--quick",
        action="store_true",
        help="encode 1 M and 25 M entries of one distribution at 0.001: a minute instead of ten",
    )
    parser.add_argument(
        "--sections",
        nargs="+",
        choices=sections.NAMES,
        metavar="S",
        help=f"sections to run (default: all, with --quick the first): {', '.join(sections.NAMES)}",
    )
    plan.add_arguments(parser)
    parser.add_argument(
        "--rounds", type=int, help="number of rounds (default: 7, above 25 M entries 3)"
    )
    parser.add_argument("--only", help="only contestants whose name contains this text")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    chosen = parser.parse_args()
    chosen.sections = chosen.sections or ([sections.ENCODE] if chosen.quick else sections.NAMES)
    return chosen


def contestants(only: str | None) -> list[type[Contestant]]:
    """Return the chosen contestants, and the dense bf16 cast, which break-even links need."""
    everyone: list[type[Contestant]] = [*ours.ALL, *peers.ALL, *hooks.ALL]
    return [k for k in everyone if not only or only in k.name or k is peers.TorchHalf]


def fits(numel: int) -> bool:
    """Return whether the machine has enough memory for a case; True if that is unknown."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return True
    free = next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    return 1024 * free >= BYTES_PER_ENTRY * numel


@contextmanager
def progress(console: Console, title: str) -> Iterator[Callable[[str], None]]:
    """Show progress; yield a function that reports what is being done."""
    columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(title, total=None)
        yield lambda what: bar.update(task, advance=1, description=f"{title}: {what}")


def encodes(
    console: Console, chosen: argparse.Namespace, kinds: list[type[Contestant]]
) -> list[Outcome]:
    """Run the contest case by case, and print each case as it finishes."""
    for kind in kinds:
        console.print(f"[bold]{kind.name}[/]: {kind.setting}", soft_wrap=True)
    todo = plan.cases(chosen, chosen.quick)
    outcomes = []
    for number, case in enumerate(todo, start=1):
        title = f"{number} of {len(todo)}: {case}"
        if not fits(case.numel):
            console.print(f"skipped, not enough memory: {case}")
            continue
        rounds = chosen.rounds or (3 if case.numel > plan.HEADLINE else 7)
        with progress(console, title) as tick:
            outcomes.append(run(case, kinds, rounds, tick))
        _show(console, case, outcomes[-1])
    return outcomes


def _show(console: Console, case: Case, outcome: Outcome) -> None:
    console.print(tables.encode_table(outcome))
    if case.numel == plan.HEADLINE and case.threads == 1:
        console.print(break_even.table(outcome))


def others(console: Console, chosen: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    """Run the other sections, each with all its numbers of threads."""
    numel = chosen.sizes[0] if chosen.sizes else plan.HEADLINE
    found: dict[str, list[dict[str, Any]]] = {}
    for section in (each for name, each in sections.ALL.items() if name in chosen.sections):
        for threads in section.threads:
            with progress(console, f"{section.summary}, threads: {threads}") as tick:
                measured = section.measure(numel, threads, chosen.rounds or 7, tick)
            found.setdefault(section.name, []).append(measured)
            console.print(section.table(measured))
    return found


def main() -> None:
    chosen = arguments()
    console = Console(width=None if Console().is_terminal else 170)
    kinds = contestants(chosen.only)
    facts = record.machine()
    console.print(f"{facts['processor']}, {facts['cores']} cores, SIMD level {facts['simd']}\n")
    outcomes = encodes(console, chosen, kinds) if sections.ENCODE in chosen.sections else []
    found = others(console, chosen)
    document = record.document(outcomes, found, kinds, facts)
    console.print(aims.table(document))
    console.print(f"\nWritten: {record.write(document, chosen.out)}")


if __name__ == "__main__":
    sys.exit(stopping.run(main))
