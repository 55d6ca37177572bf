"""Measure what the papers behind the codecs claim, and write the table of docs/headlines.md.

Finished runs are kept in benches/results/headlines.jsonl: the same command goes on where it was
interrupted. Trainings of simulated ranks take one core, and what else runs does not change them.
What takes time needs network namespaces and a machine with nothing else to do; it is measured once
on each kind of machine, and again with --again. Both are made again with other versions. --quick
keeps what it finds in a file of its own.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import torch

import gradwire
from benches import stopping

from . import links, page
from .links import Row
from .plan import trainings
from .results import QUICK, RESULTS, Results

TIMED: dict[str, Callable[..., list[Row]]] = {
    "accordion": links.accordions,
    "sidco": links.throughput,
    "dryden": links.reductions,
}
NAMES = ("scalecom", "adacomp", *TIMED)


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benches.headlines",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", action="append", choices=NAMES, metavar="NAME",
                        help=f"one of {', '.join(NAMES)}; may be given several times")  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="a few steps of each")
    parser.add_argument(
        "--rounds",
        type=int,
        help="repetitions of what is timed over links (default: "
        + ", ".join(f"{count} of {name}" for name, count in links.ROUNDS.items())
        + ")",
    )
    parser.add_argument("--again", action="store_true", help="repeat what takes time")
    parser.add_argument("--table", action="store_true", help="measure nothing, write the table")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help=f"results (default: {RESULTS}, or {QUICK})"
    )
    return parser.parse_args(given)


def main(given: list[str] | None = None) -> None:
    """Measure what is missing, and write what was found."""
    chosen = arguments(given)
    out = chosen.out or (QUICK if chosen.quick else RESULTS)
    kept = Results(out)
    names = () if chosen.table else chosen.only or NAMES
    torch.set_num_threads(1)
    gradwire.set_num_threads(1)
    kept.train(trainings(*names, quick=chosen.quick))
    for name in names:
        if name not in TIMED:
            continue
        rounds = 1 if chosen.quick else chosen.rounds or links.ROUNDS[name]
        if chosen.again or not kept.complete(name, rounds=rounds, quick=chosen.quick):
            print(f"{name}:", flush=True)
            rows = TIMED[name](quick=chosen.quick, rounds=rounds)
            kept.keep(name, rows, rounds=rounds, quick=chosen.quick)
    found = page.blocks(kept, quick=chosen.quick)
    print("\n".join(line for lines in found.values() for line in ["", *lines]))
    if out.resolve() == RESULTS and not chosen.quick:
        page.write(found)


if __name__ == "__main__":
    sys.exit(stopping.run(main))
