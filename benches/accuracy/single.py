"""Make one run, keep it where ``make accuracy`` looks for it, and print its section's loss curves.

python -m benches.accuracy.single code "adam(0.01)" --ranks 8 --rate 0.001 --seed 0

A run that is kept already is not made again.
"""

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

from benches.harness import pages, results
from benches.harness.command import command_line
from benches.harness.results import Record

from . import store
from .methods import METHODS
from .plan import SECTIONS, Run
from .pool import train
from .show import label


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    parser = command_line("benches.accuracy.single", __doc__)
    parser.add_argument("section", choices=SECTIONS, metavar="SECTION", help=", ".join(SECTIONS))
    parser.add_argument("method", choices=METHODS, metavar="METHOD", help="; ".join(METHODS))
    parser.add_argument("--ranks", type=int, default=2, help="default: %(default)s")
    parser.add_argument("--rate", type=float, required=True, help="the highest learning rate")
    parser.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    parser.add_argument("--steps", type=int, help="default: those of the section")
    parser.add_argument("--data", type=Path, metavar="DIR", help="as for make accuracy")
    parser.add_argument("--out", type=Path, default=Path("accuracy-results"), metavar="DIR")
    chosen = parser.parse_args(given)
    chosen.steps = chosen.steps or SECTIONS[chosen.section].steps
    return chosen


def main(given: list[str] | None = None) -> int:
    chosen = arguments(given)
    run = Run(chosen.section, chosen.method, chosen.ranks, chosen.rate, chosen.seed)
    kept = results.Store(chosen.out / "runs.jsonl")
    saved = store.key(run, chosen.steps)
    key = {**saved, "versions": store.versions()}
    if all(record["key"] != key for record in kept.records):
        store.keep(kept, saved, train(chosen.data, *store.order(run, chosen.steps)))
    same = ("section", "edition", "steps", "versions")
    shown = [each for each in kept.records if all(each["key"][name] == key[name] for name in same)]
    print(curves(shown))
    return 0


def curves(records: Iterable[Record]) -> str:
    """Return a table of runs of one length: the held-out loss at each evaluation."""
    headings = ["method", "ranks", "learning rate", "seed", "kB per step", "seconds"]
    steps: list[str] = []
    rows = []
    for record in records:
        key, points = record["key"], record["points"]
        begin = (label(key["method"]), key["ranks"], f"{key['learning_rate']:.4g}", key["seed"])
        cost = (f"{record['bytes_per_step'] / 1e3:.1f}", f"{record['seconds']:.0f}")
        rows.append([*begin, *cost, *(f"{point['loss']:.3f}" for point in points)])
        steps = max(steps, [f"step {point['step']:,}" for point in points], key=len)
    width = len(headings) + len(steps)
    return pages.table(headings + steps, [row + [""] * (width - len(row)) for row in rows])


if __name__ == "__main__":
    sys.exit(main())
