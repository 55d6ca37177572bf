"""Step times as `gradwire.cost` predicts them, beside those of real processes over shaped links.

    python -m benches.plan [--ranks N] [--rates ...] [--methods ...] [--out FILE] [--into FILE]

Processes in network namespaces train a network of 8.4 M parameters over links of known speed, as
root or where user namespaces are allowed. The model sees what a user can measure beforehand: a
step without any exchange, codecs on these machines, and the link by all-reduces. Methods take
turns, and so do steps without any exchange. Every figure, of what the model takes and of what it is
judged by, is the middle one of several: what is usual, on a machine whose speed varies.

With all methods and rates, 2 ranks take about 25 minutes.
"""

import argparse
import json
import sys
from pathlib import Path

from benches import stopping
from benches.compare import blocks
from gradwire.cli.plan.quantities import parse_rate

from .judge import table
from .measure import measure
from .rank import METHODS

RATES = "50mbit,100mbit,1gbit,10gbit,unshaped"


def main() -> None:
    """Measure, predict and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=2, choices=(2, 3, 4))
    parser.add_argument("--rates", default=RATES, help="default: %(default)s")
    parser.add_argument("--methods", default=",".join(METHODS), help="default: all")
    parser.add_argument("--rounds", type=int, default=12,
                        help="turns of all methods (default: %(default)s)")  # fmt: skip
    parser.add_argument("--out", type=Path, help="keep what was measured")
    parser.add_argument("--show", type=Path, nargs="+", metavar="FILE", help="what --out kept")
    parser.add_argument("--into", type=Path, help="a page that has the block")
    options = parser.parse_args()
    methods = options.methods.split(",")
    if unknown := sorted(set(methods) - set(METHODS)):
        parser.error(f"--methods: unknown {', '.join(unknown)}; known are {', '.join(METHODS)}")
    if options.show is not None:
        runs = [json.loads(each.read_text("utf-8")) for each in options.show]
    else:
        rates = [0 if each == "unshaped" else parse_rate(each) for each in options.rates.split(",")]
        runs = [measure(options.ranks, rates, methods, options.rounds)]
    if options.out is not None:
        options.out.write_text(json.dumps(runs[0], separators=(",", ":")) + "\n", "utf-8")
    lines = [line for run in runs for line in (*table(run), "")][:-1]
    print("\n".join(lines))
    if options.into is not None:
        blocks.replace(options.into, "predicted and measured", lines)


if __name__ == "__main__":
    sys.exit(stopping.run(main))
