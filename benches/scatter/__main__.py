"""Exchanges in which ranks own ranges, beside the all-gather of the same codec.

    python -m benches.scatter                    # bytes a step, 2 to 8 processes
    python -m benches.scatter --steps            # time of a step of onebit, 4 processes
    python -m benches.scatter --carriers         # Gloo's collectives against messages between pairs
    python -m benches.scatter --accuracy --into docs/exchanges.md

Every rank is a process of its own, over Gloo on the loopback device, or with --carriers over shaped
links between network namespaces; with --accuracy ranks are simulated. For bytes and times,
gradients are drawn: a tenth of their energy is common to all ranks, so that ranks select a part of
their entries alike.
"""

import argparse
import sys
from pathlib import Path

from benches import stopping

from . import accuracy, carriers, steps, volume


def main() -> None:
    """Print one of the tables."""
    parser = argparse.ArgumentParser(
        prog="python -m benches.scatter",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    tables = parser.add_mutually_exclusive_group()
    tables.add_argument("--carriers", action="store_true")
    tables.add_argument("--steps", action="store_true")
    tables.add_argument("--accuracy", action="store_true", help="goes on where it was interrupted")
    parser.add_argument("--ratio", type=float, default=0.01)
    parser.add_argument("--ranks", type=int, default=4, help="of --steps")
    parser.add_argument("--file", type=Path, default=accuracy.RESULTS, help="of --accuracy")
    parser.add_argument("--into", type=Path, help="a page that has the block, of --accuracy")
    arguments = parser.parse_args()
    if arguments.carriers:
        carriers.table()
    elif arguments.steps:
        steps.table(arguments.ranks)
    elif arguments.accuracy:
        accuracy.measure(arguments.file)
        accuracy.write(arguments.file, arguments.into)
    else:
        volume.table(arguments.ratio)


if __name__ == "__main__":
    sys.exit(stopping.run(main))
