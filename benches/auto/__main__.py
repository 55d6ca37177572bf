"""Steps with ``auto`` beside those of every setting that can be chosen by hand, by link.

    python -m benches.auto [--out FILE] [--into docs/auto.md]

Processes in network namespaces train a network of 8.4 M parameters with AdamW over links of known
speed, as root or where user namespaces are allowed. On each link ``auto`` begins anew, and its
first steps are timed. Then all methods take turns, some steps at a time: the clock of ``auto`` runs
from step to step. Of each turn the first step is left out; a figure is the median of the others.
"""

import argparse
import json
import os
import statistics
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from benches import stopping
from benches.compare import blocks
from benches.ranks import joined
from gradwire.cli.training.link import format_rate, parse_rate
from gradwire.cli.training.machine import machine, versions

from .rank import METHODS

RATES = ("50mbit", "100mbit", "1gbit", "10gbit", "unshaped")
MOST = 600  # steps that auto may take to settle
TURN = 12  # steps of a turn


def measure(ranks: int, rates: list[int | None], rounds: int, seconds: float) -> dict[str, Any]:
    """Measure all steps on all links."""
    load = os.getloadavg()
    with joined(ranks, "benches.auto.rank", shaped=True) as processes:
        outcomes = []
        for rate in rates:
            print(name(rate), file=sys.stderr, flush=True)
            processes.shape(None)  # while DDP compares the models
            processes.ask(do="begin", methods=list(METHODS))
            processes.shape(rate)
            outcomes.append({"rate": rate, **_over(processes.ask, rounds, seconds)})
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "versions": {**versions(), "torch": torch.__version__},
        "load": {"before": load, "after": os.getloadavg()},
        "ranks": ranks,
        "outcomes": outcomes,
    }


def _over(ask: Any, rounds: int, limit: float) -> dict[str, Any]:
    start: list[float] = []
    while len(start) < MOST:
        answers = ask(do="steps", method="auto", count=4)
        start += slowest(answers)
        if answers[0]["decision"].startswith("It averages"):
            break
    seconds: dict[str, list[list[float]]] = {method: [] for method in METHODS}
    counts: dict[str, int] = {}
    for method in METHODS:  # DDP rebuilds its buckets, and codecs learn their sizes
        taken = slowest(ask(do="steps", method=method, count=3))[-1]
        counts[method] = max(3, min(TURN, round(limit / taken)))
    for turn in range(rounds):
        at = turn % len(METHODS)
        for method in (*METHODS[at:], *METHODS[:at]):
            answers = ask(do="steps", method=method, count=counts[method])
            seconds[method].append(slowest(answers)[1:])
            if method == "auto":
                decision = answers[0]["decision"]
    return {"start": start, "seconds": seconds, "decision": decision}


def slowest(answers: list[dict[str, Any]]) -> list[float]:
    """Return each step as its slowest rank has seen it."""
    return [max(each) for each in zip(*(answer["seconds"] for answer in answers), strict=True)]


def name(rate: int | None) -> str:
    """Return a rate in words."""
    return "unshaped" if rate is None else format_rate(rate)


def table(measured: dict[str, Any]) -> list[str]:
    """Return the table in Markdown."""
    title = (
        f"Measured on {measured['date'][:10]}, {measured['ranks']} ranks with a core each, 8.4 M "
        "parameters, AdamW, Gloo; milliseconds of a step, medians; the best setting of each link "
        "is in bold."
    )
    lines = [
        title,
        "",
        "| link | " + " | ".join(METHODS) + " | auto over the best | over fp32 | first steps |",
        "|---|" + "---:|" * (len(METHODS) + 3),
    ]
    for outcome in measured["outcomes"]:
        found = {
            method: statistics.median(each for turn in turns for each in turn)
            for method, turns in outcome["seconds"].items()
        }
        best = min(seconds for method, seconds in found.items() if method != "auto")
        cells = [
            f"**{1e3 * seconds:.0f}**" if seconds == best else f"{1e3 * seconds:.0f}"
            for seconds in found.values()
        ]
        start = outcome["start"]
        cells += [
            f"{found['auto'] / best - 1:+.1%}",
            f"{found['auto'] / found['fp32'] - 1:+.1%}",
            f"{len(start)}: {sum(start):.1f} s",
        ]
        lines.append(f"| {name(outcome['rate'])} | " + " | ".join(cells) + " |")
    lines += ["", "What it said:", ""]
    lines += [f"* {name(each['rate'])}: {each['decision']}" for each in measured["outcomes"]]
    return lines


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rates", default=",".join(RATES), help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=len(METHODS),
                        help="turns of all methods; a multiple of their number puts each in each "
                        "place as often (default: %(default)s)")  # fmt: skip
    parser.add_argument("--seconds", type=float, default=3.0, help="aim of a turn")
    parser.add_argument("--out", type=Path, help="keep what was measured")
    parser.add_argument("--show", type=Path, metavar="FILE", help="what --out kept")
    parser.add_argument("--into", type=Path, help="a page that has the block")
    options = parser.parse_args()
    if options.show is not None:
        measured = json.loads(options.show.read_text("utf-8"))
    else:
        given = options.rates.split(",")
        rates = [None if each == "unshaped" else parse_rate(each) for each in given]
        measured = measure(options.ranks, rates, options.rounds, options.seconds)
    if options.out is not None:
        options.out.write_text(json.dumps(measured, indent=1) + "\n", "utf-8")
    lines = table(measured)
    print("\n".join(lines))
    if options.into is not None:
        blocks.replace(options.into, "auto beside all others", lines)


if __name__ == "__main__":
    sys.exit(stopping.run(main))
