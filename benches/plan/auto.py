"""Steps with ``auto`` beside those of every setting that can be chosen by hand, by link.

    python -m benches.plan.auto [--ranks N] [--out FILE] [--into docs/auto.md]

Processes in network namespaces train a network of 8.4 M parameters with AdamW over links of known
speed, as root or where user namespaces are allowed. On each link ``auto`` begins anew, its first
steps are timed, and it goes on for half a minute, in which it compares once more what was close.
Then all methods take turns, some steps at a time: the clock of ``auto`` runs from step to step. Of
each turn the first step is left out; a figure is the median of the others. What is finished is kept
in the file of --out, and the same command goes on from there, on the same machine.
"""

import argparse
import os
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benches.harness import pages, results
from benches.harness.command import conduct
from benches.harness.processes import joined
from gradwire.cli.plan.quantities import parse_rate

from .judge import name_of
from .rank import DENSE, by_hand

RATES = "50mbit,100mbit,1gbit,10gbit,unshaped"
MOST = 600  # steps that auto may take to settle
LATER = 400  # steps that it goes on for afterwards, at most
TURN = 12  # steps of a turn

Ask = Callable[..., list[dict[str, Any]]]


def measure(chosen: argparse.Namespace) -> dict[str, Any]:
    """Measure all steps on the links that are missing."""
    measured = {**results.circumstances(), "ranks": chosen.ranks, "outcomes": []}
    if chosen.out is not None and chosen.out.exists():
        found = results.read(chosen.out)
        same = results.same_machine(found["machine"], measured["machine"])
        if not same or found["ranks"] != chosen.ranks:
            raise SystemExit(f"{chosen.out} is of another machine or number of ranks: move it away")
        measured = found
    there = {each["rate"] for each in measured["outcomes"]}
    methods = (*DENSE, *by_hand(chosen.ranks), "auto")
    with joined(chosen.ranks, "benches.plan.rank") as (processes, why_not):
        if why_not is not None:
            raise SystemExit(f"no shaped link: {why_not}")
        for rate in (each for each in chosen.rates if each not in there):
            print(name_of(rate), file=sys.stderr, flush=True)
            load = os.getloadavg()
            processes.shape(None)  # while DDP compares the models
            processes.ask(do="begin", methods=list(methods))
            processes.shape(rate)
            start, settled = settle(processes.ask)
            later = go_on(processes.ask, chosen.after)
            turns = take_turns(processes.ask, methods, chosen.rounds, chosen.seconds)
            measured["outcomes"].append(
                {"rate": rate, "load": load, "start": start, "settled": settled, "after": later}
                | turns
            )
            if chosen.out is not None:
                results.write(measured, chosen.out)
    return measured


def settle(ask: Ask) -> tuple[list[float], bool]:
    """Take steps with ``auto`` until it has settled; tell their seconds, and whether it has."""
    start: list[float] = []
    while len(start) < MOST:
        answers = ask(do="steps", method="auto", count=4)
        start += slowest(answers)
        if answers[0]["decision"].startswith("It averages"):
            return start, True
    return start, False


def go_on(ask: Ask, seconds: float) -> list[float]:
    """Take steps with ``auto`` for so many seconds."""
    found: list[float] = []
    while sum(found) < seconds and len(found) < LATER:
        found += slowest(ask(do="steps", method="auto", count=4))
    return found


def take_turns(
    ask: Ask, methods: Sequence[str], rounds: int | None, limit: float
) -> dict[str, Any]:
    """Have all methods take turns of so many seconds; by default, each is once in each place."""
    seconds: dict[str, list[list[float]]] = {method: [] for method in methods}
    counts: dict[str, int] = {}
    for method in methods:  # DDP rebuilds its buckets, and codecs learn their sizes
        taken = slowest(ask(do="steps", method=method, count=3))[-1]
        counts[method] = max(3, min(TURN, round(limit / taken)))
    decision = ""
    for turn in range(rounds or len(methods)):
        at = turn % len(methods)
        for method in (*methods[at:], *methods[:at]):
            answers = ask(do="steps", method=method, count=counts[method])
            seconds[method].append(slowest(answers)[1:])
            decision = answers[0]["decision"] or decision
    return {"seconds": seconds, "decision": decision}


def slowest(answers: list[dict[str, Any]]) -> list[float]:
    """Return each step as its slowest rank has seen it."""
    return [max(each) for each in zip(*(answer["seconds"] for answer in answers), strict=True)]


def table(measured: Mapping[str, Any]) -> str:
    """Return the table in Markdown, and what ``auto`` said of each link."""
    outcomes = measured["outcomes"]
    headings = [*outcomes[0]["seconds"], "auto over the best", "over fp32", "first steps"]
    title = (
        f"Measured on {measured['date'][:10]}, {measured['ranks']} ranks on "
        f"{measured['machine']['cores']} cores, 8.4 M parameters, AdamW, Gloo; milliseconds of a "
        "step, medians; the best setting of each link is in bold."
    )
    rows = [[name_of(each["rate"]), *_cells(each)] for each in outcomes]
    said = "\n".join(f"* {name_of(each['rate'])}: {each['decision']}" for each in outcomes)
    return f"{title}\n\n{pages.table(['link', *headings], rows)}\n\nWhat it said:\n\n{said}"


def _cells(outcome: Mapping[str, Any]) -> list[str]:
    found = {
        method: statistics.median(each for turn in turns for each in turn)
        for method, turns in outcome["seconds"].items()
    }
    best = min(seconds for method, seconds in found.items() if method != "auto")
    start = outcome["start"]
    return [
        *(f"**{1e3 * s:.0f}**" if s == best else f"{1e3 * s:.0f}" for s in found.values()),
        f"{found['auto'] / best - 1:+.1%}",
        f"{found['auto'] / found['fp32'] - 1:+.1%}",
        f"{'' if outcome['settled'] else 'not settled after '}{len(start)}: {sum(start):.1f} s",
    ]


def rates(text: str) -> list[int | None]:
    """Parse the speeds of links."""
    return [None if each == "unshaped" else parse_rate(each) for each in text.split(",")]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rates", type=rates, default=rates(RATES), help=f"default: {RATES}")
    parser.add_argument("--rounds", type=int, help="turns of all methods (default: their number)")
    parser.add_argument("--seconds", type=float, default=3.0, help="aim of a turn")
    parser.add_argument("--after", type=float, default=30.0, metavar="SECONDS",
                        help="auto goes on for so long, settled (default: 30)")  # fmt: skip
    parser.add_argument("--out", type=Path, help="keep what was measured, and go on from there")
    parser.add_argument("--show", type=Path, metavar="FILE", help="what --out kept")
    parser.add_argument("--into", type=Path, help="a page that has the block")
    chosen = parser.parse_args()

    def run() -> int:
        block = table(results.read(chosen.show) if chosen.show is not None else measure(chosen))
        print(block)
        if chosen.into is not None:
            pages.replace(chosen.into, "auto beside all others", block)
        return 0

    return conduct("benches.plan.auto", run)


if __name__ == "__main__":
    sys.exit(main())
