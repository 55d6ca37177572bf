"""Measure what the model takes, and the steps that it is judged by."""

import os
import statistics
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from benches.harness import results
from benches.harness.processes import Ranks, joined
from gradwire.cost import Calibration, CodecCost, Line

from .judge import name_of
from .rank import DENSE, LAYERS, NUMEL

AT_ONCE = 6  # methods that take turns, whose models are in memory
TIMES = 3  # that codecs are measured
LONGEST = 8.0  # seconds that the turns of one method take on one link
LEAST = 3  # turns
TURN = 4  # steps of a turn where steps are short, after one that is not timed
SHORT = 0.8  # seconds of a turn, unless one step takes longer


def measure(
    ranks: int, rates: Sequence[int | None], methods: Sequence[str], rounds: int
) -> dict[str, Any]:
    """Measure on links of these rates between so many ranks."""
    load = os.getloadavg()
    with joined(ranks, "benches.plan.rank") as (processes, why_not):
        if why_not is not None:
            raise SystemExit(f"no shaped link: {why_not}")
        codecs = [method for method in methods if method not in DENSE]
        found = [processes.ask(do="calibrate", methods=codecs, seconds=0.2) for _ in range(TIMES)]
        outcomes: list[dict[str, Any]] = [
            {"rate": rate, "links": [], "workloads": [], "seconds": {}} for rate in rates
        ]
        sent: dict[str, float] = {}
        for first in range(0, len(methods), AT_ONCE):
            batch = methods[first : first + AT_ONCE]
            processes.shape(None)
            sent |= processes.ask(do="use", methods=batch)[0]
            for outcome in outcomes:
                print(f"{name_of(outcome['rate'])}: {', '.join(batch)}", file=sys.stderr)
                processes.shape(outcome["rate"])
                _turns(processes, batch, rounds, outcome)
    return {
        **results.circumstances(),
        "load": {"before": load, "after": os.getloadavg()},
        "ranks": ranks,
        "numel": NUMEL,
        "tensors": LAYERS,
        "rounds": rounds,
        "turn": TURN,
        "calibration": middle([each for every in found for each in every]).to_json(),
        "sent": sent,
        "outcomes": outcomes,
    }


def _turns(processes: Ranks, batch: Sequence[str], rounds: int, outcome: dict[str, Any]) -> None:
    """Have some methods take turns on one link, and add what they took to its outcome."""
    outcome["links"].append({"of": list(batch), **processes.ask(do="link", seconds=0.6)[0]})
    seconds: dict[str, list[float]] = {method: [] for method in batch}
    began = dict.fromkeys(batch, 0.0)
    for turn in range(rounds):
        outcome["workloads"].append({"of": list(batch), **processes.ask(do="profile")[0]})
        at = turn % len(batch)
        for method in (*batch[at:], *batch[:at]):
            if turn >= LEAST and began[method] > LONGEST:
                continue
            start = time.perf_counter()
            last = seconds[method][-1] if seconds[method] else SHORT
            count = min(TURN, max(1, int(SHORT / last)))
            answers = processes.ask(do="timed", method=method, count=count)
            began[method] += time.perf_counter() - start
            seconds[method].append(round(max(answers), 5))
    outcome["seconds"] |= {method: sorted(each) for method, each in seconds.items()}


def middle(plain: list[dict[str, Any]]) -> Calibration:
    """Return the middle encode and decode of each codec, for a tensor of a million entries."""
    every = [Calibration.from_json(each) for each in plain]

    def median(lines: Iterable[Line], entries: float) -> Line:
        return sorted(lines, key=lambda line: line(1e6, entries))[len(every) // 2]

    def usual(name: str) -> CodecCost:
        costs = [each.codecs[name] for each in every]
        entries = 1e6 * costs[0].share
        return replace(
            costs[0],
            encode=median((each.encode for each in costs), entries),
            decode=median((each.decode for each in costs), entries),
        )

    return replace(
        every[0],
        codecs={name: usual(name) for name in every[0].codecs},
        cast_seconds=statistics.median(each.cast_seconds for each in every),
        clear_seconds=statistics.median(each.clear_seconds for each in every),
    )
