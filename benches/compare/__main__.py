"""Measure gradwire beside its peers: ``make bench``, or ``python -m benches.compare --help``."""

import argparse
from itertools import product
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from . import break_even, ours, peers, record, tables
from .contestant import Contestant
from .laws import LAWS
from .rounds import Case, Outcome, run

SIZES = [1_000, 100_000, 1_000_000, 25_000_000, 100_000_000]
RATIOS = [0.1, 0.01, 0.001]
HEADLINE = 25_000_000
# Everyone keeps a residual, most of them more: what a case takes, with room for what torch makes.
BYTES_PER_ENTRY = 160


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench ARGS=...", description=__doc__)
    parser.add_argument(
        "--quick",
        action="store_true",
        help="1 M and 25 M, one law, ratio 0.001: a minute instead of half an hour",
    )
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, metavar="N")
    parser.add_argument("--ratios", type=float, nargs="+", default=RATIOS, metavar="R")
    parser.add_argument("--laws", nargs="+", choices=[*LAWS], default=[*LAWS])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], metavar="T")
    parser.add_argument("--rounds", type=int, help="by default 7, and 3 above 25 M")
    parser.add_argument("--only", help="leave out contestants whose name does not hold this text")
    parser.add_argument("--out", type=Path, help="the JSON file to write")
    chosen = parser.parse_args()
    if chosen.quick:
        chosen.sizes, chosen.ratios, chosen.laws = [1_000_000, HEADLINE], [0.001], ["student-t(3)"]
    return chosen


def contestants(only: str | None) -> list[type[Contestant]]:
    """Return everyone, or the chosen ones; a dense bf16 cast is always in: links need it."""
    everyone: list[type[Contestant]] = [*ours.ALL, *peers.ALL]
    return [k for k in everyone if not only or only in k.name or k is peers.TorchHalf]


def cases(chosen: argparse.Namespace) -> list[Case]:
    every = product(chosen.sizes, chosen.laws, chosen.ratios, chosen.threads)
    return [Case(law, numel, ratio, threads) for numel, law, ratio, threads in every]


def fits(case: Case) -> bool:
    """Tell whether this machine has the memory for a case, where it says how much it has."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return True
    free = next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    return 1024 * free >= BYTES_PER_ENTRY * case.numel


def measure(console: Console, case: Case, kinds: list[type[Contestant]], rounds: int) -> Outcome:
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    ) as progress:
        task = progress.add_task(str(case), total=None)

        def tick(name: str) -> None:
            progress.update(task, advance=1, description=f"{case}: {name}")

        return run(case, kinds, rounds, tick)


def main() -> None:
    chosen = arguments()
    console = Console(width=None if Console().is_terminal else 170)
    kinds = contestants(chosen.only)
    facts = record.machine()
    console.print(f"{facts['processor']}, {facts['cores']} cores, SIMD level {facts['simd']}\n")
    for kind in kinds:
        console.print(f"[bold]{kind.name}[/]: {kind.setting}", soft_wrap=True)
    outcomes: list[Outcome] = []
    todo = cases(chosen)
    for number, case in enumerate(todo, start=1):
        console.print(f"\n{number} of {len(todo)}")
        if not fits(case):
            needed = BYTES_PER_ENTRY * case.numel / 1e9
            console.print(f"left out: {case} takes about {needed:.0f} GB of memory")
            continue
        rounds = chosen.rounds or (3 if case.numel > HEADLINE else 7)
        outcome = measure(console, case, kinds, rounds)
        outcomes.append(outcome)
        console.print(tables.encode_table(outcome))
        if case.numel == HEADLINE and case.threads == 1:
            console.print(break_even.table(outcome))
    path = record.write(outcomes, kinds, facts, chosen.out)
    console.print(f"\nWritten: {path}")


if __name__ == "__main__":
    main()
