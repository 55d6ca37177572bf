"""``auto`` beside every setting that can be chosen by hand."""

import os
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benches.harness import pages, results
from benches.harness.processes import joined

from .predict import name_of
from .rank import DENSE, by_hand

BLOCK = "auto beside all others"
MOST = 600  # steps that auto may take to settle
LATER, AFTER = 400, 30.0  # steps and seconds, at most, that it goes on for afterwards
TURN, LIMIT = 12, 3.0  # steps and seconds of a turn

Ask = Callable[..., list[dict[str, Any]]]


def measure(ranks: int, rates: Sequence[int | None], rounds: int) -> dict[str, Any]:
    """Measure all steps on links of these rates."""
    outcomes = []
    methods = (*DENSE, *by_hand(ranks), "auto")
    with joined(ranks, "benches.plan.rank") as (processes, why_not):
        if why_not is not None:
            raise SystemExit(f"no shaped link: {why_not}")
        for rate in rates:
            print(name_of(rate), file=sys.stderr, flush=True)
            load = os.getloadavg()
            processes.shape(None)  # while DDP compares the models
            processes.ask(do="begin", methods=list(methods))
            processes.shape(rate)
            start, settled = settle(processes.ask)
            later = go_on(processes.ask)
            turns = take_turns(processes.ask, methods, rounds)
            found = {"rate": rate, "load": load, "start": start, "settled": settled}
            outcomes.append({**found, "after": later, **turns})
    return {**results.circumstances(), "ranks": ranks, "outcomes": outcomes}


def settle(ask: Ask) -> tuple[list[float], bool]:
    """Take steps with ``auto`` until it has settled; tell their seconds, and whether it has."""
    start: list[float] = []
    while len(start) < MOST:
        answers = ask(do="steps", method="auto", count=4)
        start += slowest(answers)
        if answers[0]["decision"].startswith("It averages"):
            return start, True
    return start, False


def go_on(ask: Ask) -> list[float]:
    """Take steps with ``auto`` for a while."""
    found: list[float] = []
    while sum(found) < AFTER and len(found) < LATER:
        found += slowest(ask(do="steps", method="auto", count=4))
    return found


def take_turns(ask: Ask, methods: Sequence[str], rounds: int) -> dict[str, Any]:
    """Have all methods take turns; of each, the first step does not count."""
    seconds: dict[str, list[list[float]]] = {method: [] for method in methods}
    counts: dict[str, int] = {}
    for method in methods:  # DDP rebuilds its buckets, and codecs learn their sizes
        taken = slowest(ask(do="steps", method=method, count=3))[-1]
        counts[method] = max(3, min(TURN, round(LIMIT / taken)))
    decision = ""
    for turn in range(rounds):
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
