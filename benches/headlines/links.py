"""What takes time: exchanges between real processes over shaped links."""

import os
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from benches import accordion
from benches.compare.exchange import turns
from benches.harness.link import open_link
from benches.ranks import joined
from gradwire.cli.plan.quantities import format_rate, parse_rate
from gradwire.schedule import Accordion

ROUNDS = {"accordion": 3, "sidco": 7, "dryden": 7}
"""Steps of each method over each link, in turn; of Accordion, pairs of whole runs."""

THROUGHPUT_RATES = ("100mbit", "1gbit", "10gbit")
THROUGHPUT_RATIOS = (0.1, 0.01, 0.001)
REDUCE_RANKS = (2, 4)
REDUCE_RATES = ("100mbit", "1gbit")
SCHEDULES = (Accordion(0.5, 0.02, interval=1),)
"""Those of docs/schedules.md."""

ACCORDION_RATE = "100mbit"
STEPS, QUICK_STEPS = 1200, 60

Row = dict[str, Any]


def throughput(*, quick: bool = False, rounds: int = ROUNDS["sidco"]) -> list[Row]:
    """Return the seconds of a training step of SIDCo and of what its paper compares it with."""
    rows = []
    for ratio in THROUGHPUT_RATIOS[-1:] if quick else THROUGHPUT_RATIOS:
        rates = THROUGHPUT_RATES[1:2] if quick else THROUGHPUT_RATES
        module = "benches.headlines.throughput_rank"
        found = _turned(module, 2, rates, rounds, ratio=ratio)
        rows += [{"ratio": ratio, **each} for each in found]
    return rows


def reductions(*, quick: bool = False, rounds: int = ROUNDS["dryden"]) -> list[Row]:
    """Return the seconds of dense and quantised all-reduces."""
    rows = []
    for ranks in REDUCE_RANKS[:1] if quick else REDUCE_RANKS:
        rates = REDUCE_RATES[-1:] if quick else REDUCE_RATES
        module = "benches.headlines.allreduce_rank"
        rows += _turned(module, ranks, rates, rounds)
    return rows


def accordions(*, quick: bool = False, rounds: int = ROUNDS["accordion"]) -> list[Row]:
    """Return bytes, seconds and accuracy at the low compression, and with the schedule.

    Every round has another seed, and begins with the other one of the two.
    """
    rows = []
    for schedule in SCHEDULES[:1] if quick else SCHEDULES:
        for seed in range(rounds):
            link, why_not = open_link(2)
            with link:
                if why_not is None:
                    link.set_rate(parse_rate(ACCORDION_RATE))
                before = os.getloadavg()[0]
                low, scheduled = accordion.measure(
                    schedule,
                    steps=QUICK_STEPS if quick else STEPS,
                    seed=seed,
                    link=link,
                    scheduled_first=seed % 2 == 1,
                )
            rows.append({"schedule": schedule.get_config(), "low": asdict(low),
                         "scheduled": asdict(scheduled), "seed": seed, "ranks": 2,
                         "rate": ACCORDION_RATE if why_not is None else None,
                         "load": [before, os.getloadavg()[0]]})  # fmt: skip
            _said(f"seed {seed}: {low.seconds:.0f} s, {scheduled.seconds:.0f} s with the schedule")
    return rows


def _turned(
    module: str, ranks: int, rates: Sequence[str], rounds: int, **options: Any
) -> list[Row]:
    """Return a row for every link and method: the median of the slowest rank's seconds."""
    rows = []
    with joined(ranks, module, shaped=True, **options) as processes:
        for rate in rates:
            processes.shape(parse_rate(rate))
            before = os.getloadavg()[0]
            title = f"{ranks} ranks, {format_rate(parse_rate(rate))}, {options or ''}"
            seconds, worked, nbytes = turns(processes, rounds, title, _said)
            rows += [
                {
                    "ranks": ranks,
                    "numel": processes.facts["numel"],
                    "rate": rate,
                    "method": name,
                    "seconds": statistics.median(seconds[name].values),
                    "fastest": min(seconds[name].values),
                    "slowest": max(seconds[name].values),
                    "processor_seconds": statistics.median(worked[name].values),
                    "nbytes": nbytes[name],
                    "rounds": rounds,
                    "load": [before, os.getloadavg()[0]],
                }
                for name in processes.facts["methods"]
            ]
    return rows


def _said(what: str) -> None:
    print(f"  {what}", file=sys.stderr, flush=True)
