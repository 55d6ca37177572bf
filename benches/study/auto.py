"""Steps with ``attach(model, "auto")`` beside those with every setting that is chosen by hand.

    python -m benches.study.auto FILE [--into FILE]

Two processes in network namespaces train a network of 8.4 M parameters with AdamW over links of
known speed, as root or where user namespaces are allowed. On each link ``auto`` begins anew, its
first steps are timed, and it goes on for half a minute, in which it compares once more what was
close, before all take turns: its clock runs from step to step. About ten minutes.
"""

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

from benches.harness import pages, results
from benches.harness.command import command_line, conduct
from benches.harness.processes import joined

from .plan import BF16, FP32
from .rank import AUTO
from .show import link_name

METHODS = (FP32, BF16, "adam(0.1)", "adam(0.05)", "adam(0.02)", "adam(0.01)", AUTO)
BUCKET_MB = 8.0
RANKS, ROUNDS = 2, 12
LINKS = 100_000_000, 1_000_000_000, 10_000_000_000, None
BLOCK = "auto and all others"
MOST = 600  # steps that auto may take to settle
LATER, AFTER = 400, 30.0  # steps and seconds, at most, that it goes on for afterwards
MOST_STEPS, LIMIT = 12, 3.0  # steps and seconds of a turn

Ask = Callable[..., list[dict[str, Any]]]


def measure() -> dict[str, Any]:
    """Measure all steps on links of these rates."""
    outcomes = []
    with joined(RANKS, "benches.study.rank") as (processes, why_not):
        if why_not is not None:
            raise SystemExit(f"no shaped link: {why_not}")
        for link in LINKS:
            print(link_name(link), file=sys.stderr, flush=True)
            load = os.getloadavg()
            processes.shape(None)  # while DDP compares the models
            listed = [(method, method, BUCKET_MB) for method in METHODS]
            processes.ask(do="load", section=AUTO, contestants=listed, data=None)
            processes.shape(link)
            start, settled = settle(processes.ask)
            later: list[float] = []
            while sum(later) < AFTER and len(later) < LATER:
                later += slowest(processes.ask(do="steps", contestant=AUTO, count=4))
            turns = take_turns(processes.ask)
            found = {"rate": link, "load": load, "start": start, "settled": settled}
            outcomes.append({**found, "after": later, **turns})
    return {**results.circumstances(), "ranks": RANKS, "outcomes": outcomes}


def settle(ask: Ask) -> tuple[list[float], bool]:
    """Take steps with ``auto`` until it has settled; tell their seconds, and whether it has."""
    start: list[float] = []
    while len(start) < MOST:
        answers = ask(do="steps", contestant=AUTO, count=4)
        start += slowest(answers)
        if answers[0]["decision"].startswith("Using "):
            return start, True
    return start, False


def take_turns(ask: Ask) -> dict[str, Any]:
    """Have all methods take turns; of each, the first step does not count."""
    seconds: dict[str, list[list[float]]] = {method: [] for method in METHODS}
    counts: dict[str, int] = {}
    for method in METHODS:  # DDP rebuilds its buckets, and codecs learn their sizes
        taken = slowest(ask(do="steps", contestant=method, count=3))[-1]
        counts[method] = max(3, min(MOST_STEPS, round(LIMIT / taken)))
    decision = ""
    for turn in range(ROUNDS):
        at = turn % len(METHODS)
        for method in (*METHODS[at:], *METHODS[:at]):
            answers = ask(do="steps", contestant=method, count=counts[method])
            seconds[method].append(slowest(answers)[1:])
            decision = answers[0]["decision"] or decision
    return {"seconds": seconds, "decision": decision}


def slowest(answers: list[dict[str, Any]]) -> list[float]:
    """Return each step as its slowest rank has seen it."""
    return [max(each) for each in zip(*(answer["seconds"] for answer in answers), strict=True)]


def table(measured: Mapping[str, Any]) -> str:
    """Return the table in Markdown, and what ``auto`` said of each link."""
    outcomes = measured["outcomes"]
    headings = [*outcomes[0]["seconds"], "auto vs. best", "auto vs. fp32", "first steps"]
    title = (
        f"Measured on {measured['date'][:10]}: {measured['ranks']} ranks on "
        f"{measured['machine']['cores']} cores, 8.4 M parameters, AdamW, Gloo. Median milliseconds "
        "per step; the fastest setting on each link is in bold."
    )
    rows = [[link_name(each["rate"]), *_cells(each)] for each in outcomes]
    said = "\n".join(f"* {link_name(each['rate'])}: {each['decision']}" for each in outcomes)
    return f"{title}\n\n{pages.table(['link', *headings], rows)}\n\n`auto` reports:\n\n{said}"


def _cells(outcome: Mapping[str, Any]) -> list[str]:
    found = {
        method: median(each for turn in turns for each in turn)
        for method, turns in outcome["seconds"].items()
    }
    best = min(seconds for method, seconds in found.items() if method != AUTO)
    start = outcome["start"]
    return [
        *(f"**{1e3 * s:.0f}**" if s == best else f"{1e3 * s:.0f}" for s in found.values()),
        f"{found['auto'] / best - 1:+.1%}",
        f"{found['auto'] / found['fp32'] - 1:+.1%}",
        f"{'' if outcome['settled'] else 'not settled after '}{len(start)}: {sum(start):.1f} s",
    ]


def main() -> int:
    parser = command_line("benches.study.auto", __doc__)
    parser.add_argument("file", type=Path, help="what is measured, and shown if it is there")
    parser.add_argument("--into", type=Path, help="a page that has the block")
    chosen = parser.parse_args()

    def run() -> int:
        if not chosen.file.exists():
            results.write(measure(), chosen.file)
        text = table(results.read(chosen.file))
        print(text)
        if chosen.into is not None:
            pages.replace(chosen.into, BLOCK, text)
        return 0

    return conduct("benches.study.auto", run)


if __name__ == "__main__":
    sys.exit(main())
