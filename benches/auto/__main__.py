"""Steps with ``auto`` beside those of every setting that can be chosen by hand, by link.

    python -m benches.auto [--ranks N] [--out FILE] [--into docs/auto.md]

Processes in network namespaces train a network of 8.4 M parameters with AdamW over links of known
speed, as root or where user namespaces are allowed. On each link ``auto`` begins anew, its first
steps are timed, and it goes on for half a minute, in which it compares once more what was close.
Then all methods take turns, some steps at a time: the clock of ``auto`` runs from step to step. Of
each turn the first step is left out; a figure is the median of the others. What is finished is kept
in the file of --out, and the same command goes on from there.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from benches import stopping
from benches.compare import blocks
from benches.harness.machine import machine, versions
from benches.ranks import joined
from gradwire.cli.plan.quantities import parse_rate

from .page import name, table
from .rank import methods_for

RATES = ("50mbit", "100mbit", "1gbit", "10gbit", "unshaped")
MOST = 600  # steps that auto may take to settle
LATER = 400  # steps that it goes on for afterwards, at most
TURN = 12  # steps of a turn

Ask = Callable[..., list[dict[str, Any]]]


class Kept:
    """What was measured, in a file if there is one.

    Parameters
    ----------
    path : Path or None
        A file of other circumstances is not touched.
    **settings
        What figures depend on beside the machine and the versions.

    Raises
    ------
    SystemExit
        The file has figures of other circumstances.
    """

    def __init__(self, path: Path | None, **settings: Any) -> None:
        self._path = path
        here = {
            "machine": machine(),
            "versions": {**versions(), "torch": torch.__version__},
            **settings,
        }
        self.measured: dict[str, Any] = {"date": "", **here, "outcomes": []}
        if path is not None and path.exists():
            found = json.loads(path.read_text("utf-8"))
            if other := [name for name, value in here.items() if found.get(name) != value]:
                raise SystemExit(f"{path} was measured with other {', '.join(other)}: move it away")
            self.measured = found

    def has(self, rate: int | None) -> bool:
        """Tell whether a link was measured."""
        return any(each["rate"] == rate for each in self.measured["outcomes"])

    def add(self, outcome: dict[str, Any]) -> None:
        """Keep what was measured of a link."""
        self.measured["date"] = datetime.now(UTC).isoformat(timespec="seconds")
        self.measured["outcomes"].append(outcome)
        if self._path is not None:
            beside = self._path.with_name(self._path.name + ".new")
            beside.write_text(json.dumps(self.measured, indent=1) + "\n", "utf-8")
            beside.replace(self._path)


def measure(kept: Kept, rates: Sequence[int | None]) -> None:
    """Measure all steps on the links that are missing."""
    missing = [rate for rate in rates if not kept.has(rate)]
    settings = kept.measured
    ranks, rounds, seconds = settings["ranks"], settings["rounds"], settings["seconds"]
    methods = methods_for(ranks)
    if there := [name(rate) for rate in rates if rate not in missing]:
        print(f"there already: {', '.join(there)}", file=sys.stderr)
    if not missing:
        return
    with joined(ranks, "benches.auto.rank", shaped=True) as processes:
        for rate in missing:
            print(name(rate), file=sys.stderr, flush=True)
            load = os.getloadavg()
            processes.shape(None)  # while DDP compares the models
            processes.ask(do="begin", methods=list(methods))
            processes.shape(rate)
            start, settled = settle(processes.ask)
            later = go_on(processes.ask, settings["after"])
            turns = take_turns(processes.ask, methods, rounds or len(methods), seconds)
            kept.add(
                {"rate": rate, "load": load, "start": start, "settled": settled, "after": later}
                | turns
            )


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


def take_turns(ask: Ask, methods: Sequence[str], rounds: int, limit: float) -> dict[str, Any]:
    """Have all methods take turns of so many seconds."""
    seconds: dict[str, list[list[float]]] = {method: [] for method in methods}
    counts: dict[str, int] = {}
    for method in methods:  # DDP rebuilds its buckets, and codecs learn their sizes
        taken = slowest(ask(do="steps", method=method, count=3))[-1]
        counts[method] = max(3, min(TURN, round(limit / taken)))
    decision = ""
    for turn in range(rounds):
        at = turn % len(methods)
        for method in (*methods[at:], *methods[:at]):
            answers = ask(do="steps", method=method, count=counts[method])
            seconds[method].append(slowest(answers)[1:])
            if method == "auto":
                decision = answers[0]["decision"]
    return {"seconds": seconds, "decision": decision}


def slowest(answers: list[dict[str, Any]]) -> list[float]:
    """Return each step as its slowest rank has seen it."""
    return [max(each) for each in zip(*(answer["seconds"] for answer in answers), strict=True)]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rates", default=",".join(RATES), help="default: %(default)s")
    parser.add_argument("--rounds", type=int,
                        help="turns of all methods; a multiple of their number puts each in each "
                        "place as often (default: their number)")  # fmt: skip
    parser.add_argument("--seconds", type=float, default=3.0, help="aim of a turn")
    parser.add_argument("--after", type=float, default=30.0, metavar="SECONDS",
                        help="auto goes on for so long once it has settled, and for at most "
                        f"{LATER} steps (default: %(default)g)")  # fmt: skip
    parser.add_argument("--out", type=Path, help="keep what was measured, and go on from there")
    parser.add_argument("--show", type=Path, metavar="FILE", help="what --out kept")
    parser.add_argument("--into", type=Path, help="a page that has the block")
    options = parser.parse_args()
    if options.show is not None:
        measured = json.loads(options.show.read_text("utf-8"))
    else:
        given = options.rates.split(",")
        rates = [None if each == "unshaped" else parse_rate(each) for each in given]
        kept = Kept(
            options.out,
            ranks=options.ranks,
            rounds=options.rounds,
            seconds=options.seconds,
            after=options.after,
        )
        measure(kept, rates)
        measured = kept.measured
    lines = table(measured)
    print("\n".join(lines))
    if options.into is not None:
        blocks.replace(options.into, "auto beside all others", lines)


if __name__ == "__main__":
    sys.exit(stopping.run(main))
