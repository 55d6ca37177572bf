"""Measure what the papers behind the codecs claim, and write the table of docs/headlines.md.

Finished runs are kept in benches/results/headlines.jsonl: the same command goes on where it was
interrupted. Trainings of simulated ranks take one core, and what else runs does not change them.
What takes time needs network namespaces and a machine with nothing else to do; it is measured once,
and again with --again.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import torch

import gradwire

from . import links, page
from .links import Row
from .plan import trainings
from .results import RESULTS, Results

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
        default=links.ROUNDS,
        help="steps of what is timed over links (default: %(default)s)",
    )
    parser.add_argument("--again", action="store_true", help="repeat what takes time")
    parser.add_argument("--table", action="store_true", help="measure nothing, write the table")
    parser.add_argument(
        "--out", type=Path, default=RESULTS, metavar="FILE", help="results (default: %(default)s)"
    )
    return parser.parse_args(given)


def main(given: list[str] | None = None) -> None:
    """Measure what is missing, and write what was found."""
    chosen = arguments(given)
    kept = Results(chosen.out)
    names = () if chosen.table else chosen.only or NAMES
    torch.set_num_threads(1)
    gradwire.set_num_threads(1)
    kept.train(trainings(*names, quick=chosen.quick))
    for name in names:
        if name in TIMED and (chosen.again or kept.measured(name, quick=chosen.quick) is None):
            print(f"{name}:", flush=True)
            rows = TIMED[name](quick=chosen.quick, rounds=chosen.rounds)
            kept.keep(name, rows, quick=chosen.quick)
    found = page.blocks(kept, quick=chosen.quick)
    print("\n".join(line for lines in found.values() for line in ["", *lines]))
    if chosen.out.resolve() == RESULTS and not chosen.quick:
        page.write(found)


if __name__ == "__main__":
    main()
