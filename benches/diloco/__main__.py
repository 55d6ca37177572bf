"""Train with DiLoCo and with dense data parallelism, on the demo's text at equal tokens.

Every finished run is kept in the file of results: the same command goes on where it was
interrupted, and the tables of docs/diloco.md are those of the file. The ranks, two if nothing
else is said, are simulated in one process of one thread. A run takes about two minutes.
"""

import argparse
import sys
from pathlib import Path

import torch

import gradwire
from benches import stopping
from benches.accuracy.tasks.text import Text

from . import tables
from .results import DENSE, RESULTS, STEPS, Results, Run
from .settings import SETTINGS


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benches.diloco",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--only",
        action="append",
        choices=[DENSE, *SETTINGS],
        metavar="NAME",
        help="a setting, instead of all runs of the tables; may be given several times",
    )
    parser.add_argument(
        "--seeds", type=int, nargs="+", default=[0], help="for --only (default: %(default)s)"
    )
    parser.add_argument("--steps", type=int, default=STEPS, help="for --only, to screen")
    parser.add_argument(
        "--ranks", type=int, default=2, help="for --only: simulated ranks (default: %(default)s)"
    )
    parser.add_argument(
        "--out", type=Path, default=RESULTS, metavar="FILE", help="results (default: %(default)s)"
    )
    parser.add_argument("--tables", action="store_true", help="train nothing, only write tables")
    return parser.parse_args(given)


def main(given: list[str] | None = None) -> None:
    """Make the runs that are missing, and write what they show."""
    chosen = arguments(given)
    kept = Results(chosen.out)
    if chosen.only is None:
        asked = tables.runs()
    else:
        asked = [
            Run(name, seed, chosen.steps, chosen.ranks)
            for seed in chosen.seeds
            for name in chosen.only
        ]
    if not chosen.tables:
        torch.set_num_threads(1)
        gradwire.set_num_threads(1)
        kept.make(asked, Text())
    found = tables.tables(kept.made())
    print("\n".join(line for lines in found.values() for line in ["", *lines]))
    if chosen.out.resolve() == RESULTS:
        tables.write(found)


if __name__ == "__main__":
    sys.exit(stopping.run(main))
