"""Step times as `gradwire.cost` predicts them, beside those of real processes over shaped links.

    python -m benches.plan [--ranks N] [--rates ...] [--methods ...] [--out FILE] [--into FILE]
    python -m benches.plan --auto [--out FILE] [--into docs/auto-inside.md]

Processes in network namespaces train a network of 8.4 M parameters over links of known speed, as
root or where user namespaces are allowed. The model sees what a user can measure beforehand: a
step without any exchange, codecs on these machines, and the link by all-reduces. Methods take
turns, and so do steps without any exchange. Every figure, of what the model takes and of what it is
judged by, is the middle one of several: what is usual, on a machine whose speed varies. With all
methods and rates, 2 ranks take about 25 minutes.

With --auto, ``auto`` trains beside every setting that can be chosen by hand, with AdamW. On each
link it begins anew, its first steps are timed, and it goes on for half a minute, in which it
compares once more what was close, before all take turns: its clock runs from step to step.
"""

import argparse
import sys
from pathlib import Path

from benches.harness import pages, results
from benches.harness.command import conduct
from gradwire.cli.plan.quantities import rate

from .predict import AUTO_BLOCK, measure, measure_auto, table, table_auto
from .rank import METHODS

RATES = "50mbit,100mbit,1gbit,10gbit,unshaped"


def rates(text: str) -> list[int | None]:
    """Parse the speeds of links."""
    return [None if each == "unshaped" else rate(each) for each in text.split(",")]


def main() -> int:
    # fmt: off
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--auto", action="store_true", help="compare `auto`; predict nothing")
    parser.add_argument("--ranks", type=int, default=2, choices=(2, 3, 4))
    parser.add_argument("--rates", type=rates, default=rates(RATES), help=f"default: {RATES}")
    parser.add_argument("--methods", default=",".join(METHODS), help="default: all")
    parser.add_argument("--rounds", type=int, default=12,
                        help="turns of all methods (default: %(default)s)")
    parser.add_argument("--out", type=Path, help="keep what was measured")
    parser.add_argument("--show", type=Path, nargs="+", metavar="FILE", help="what --out kept")
    parser.add_argument("--into", type=Path, help="a page that has the block")
    chosen = parser.parse_args()
    # fmt: on
    methods = chosen.methods.split(",")
    if unknown := sorted(set(methods) - set(METHODS)):
        parser.error(f"--methods: unknown {', '.join(unknown)}; known are {', '.join(METHODS)}")

    def run() -> int:
        if chosen.show is not None:
            runs = [results.read(each) for each in chosen.show]
        elif chosen.auto:
            runs = [measure_auto(chosen.ranks, chosen.rates, chosen.rounds)]
        else:
            runs = [measure(chosen.ranks, chosen.rates, methods, chosen.rounds)]
        if chosen.out is not None:
            results.write(runs[0], chosen.out)
        block = "\n\n".join(map(table_auto if chosen.auto else table, runs))
        print(block)
        if chosen.into is not None:
            pages.replace(
                chosen.into, AUTO_BLOCK if chosen.auto else "predicted and measured", block
            )
        return 0

    return conduct("benches.plan", run)


if __name__ == "__main__":
    sys.exit(main())
