"""Measure what the model takes and the steps that it is judged by; tell how predictions err."""

import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from benches.harness import pages, results
from benches.harness.processes import Ranks, joined
from gradwire import cost
from gradwire.cli.plan.quantities import format_rate
from gradwire.cost import Calibration, Link, Method
from gradwire.cost.calibration import CodecCost, Line

from .rank import BY_HAND, DENSE, LAYERS, NUMEL

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

    def usual_line(lines: Iterable[Line], entries: float) -> Line:
        return sorted(lines, key=lambda line: line(1e6, entries))[len(every) // 2]

    def usual(name: str) -> CodecCost:
        costs = [each.codecs[name] for each in every]
        entries = 1e6 * costs[0].share
        return replace(
            costs[0],
            encode=usual_line((each.encode for each in costs), entries),
            decode=usual_line((each.decode for each in costs), entries),
        )

    return replace(
        every[0],
        codecs={name: usual(name) for name in every[0].codecs},
        cast_seconds=median(each.cast_seconds for each in every),
        clear_seconds=median(each.clear_seconds for each in every),
    )


BY_GRADIENTS = ("threshold", "strom", "adacomp", "adaptive", "gaussiank", "redsync")
"""What these send depends on gradients: they get the number of bytes that training has sent."""

Row = dict[str, Any]


def name_of(rate: int | None) -> str:
    """Return the name of a link; 0 or None is one that is not shaped."""
    return format_rate(rate) if rate else "unshaped"


def _with(found: Sequence[dict[str, Any]], method: str) -> list[dict[str, Any]]:
    """Return what was measured while a method took its turns: the machine's speed varies."""
    return [
        {name: value for name, value in each.items() if name != "of"}
        for each in found
        if method in each.get("of", [method])
    ]


def workload(outcome: dict[str, Any], method: str, *, updates: bool = False) -> cost.Workload:
    """Return the middle step without any exchange.

    If the codec sends updates, with the optimizer that applies them in place of SGD.
    """
    every = _with(outcome["workloads"], method)
    every.sort(key=lambda each: float(each["backward"] + each["other"]))
    more = median(each.pop("applying") for each in every)
    facts = every[len(every) // 2]
    return cost.Workload(**facts | {"other": facts["other"] + (more if updates else 0.0)})


def link_of(outcome: dict[str, Any], method: str) -> Link:
    """Return the link in the middle: what is fitted may err to both sides."""
    links = sorted(_with(outcome["links"], method), key=lambda each: float(each["bandwidth"]))
    return Link(**links[len(links) // 2])


def method_of(name: str, measured: dict[str, Any]) -> Method:
    """Return what is predicted."""
    calibration = Calibration.from_json(measured["calibration"])
    if name == "fp32":
        return cost.fp32()
    if name == "bf16":
        return cost.bf16(calibration)
    method = cost.compressed(name, calibration)
    if name not in BY_GRADIENTS:
        return method
    return _sends(method, measured, measured["sent"][name] / (measured["ranks"] - 1))


def _sends(method: Method, measured: dict[str, Any], nbytes: float) -> Method:
    """Return a method with the share of entries of which slots have so many bytes."""
    low, high = 1e-6, 1.0
    for _ in range(40):
        share = (low * high) ** 0.5
        made = method.with_share(share)
        larger = made.payload(measured["numel"], measured["tensors"]).nbytes > nbytes
        low, high = (low, share) if larger else (share, high)
    return made


def predictions(measured: dict[str, Any]) -> list[Row]:
    """Return predicted and measured seconds of each rate and method."""
    rows = []
    for outcome in measured["outcomes"]:
        for name, seconds in outcome["seconds"].items():
            method = method_of(name, measured)
            updates = method.cost is not None and method.cost.codec.memory.updates
            work = workload(outcome, name, updates=updates)
            network = cost.Network(measured["ranks"], link_of(outcome, name))
            found = cost.predict(work, method, network)
            real = median(seconds)
            rows.append({"rate": outcome["rate"], "method": name,
                         "compute": workload(outcome, name).compute,
                         "predicted": found.step, "measured": real,
                         "error": found.step / real - 1})  # fmt: skip
    return rows


def table(measured: dict[str, Any]) -> str:
    """Return the table in Markdown, with a sentence before and one after it."""
    rows = predictions(measured)
    cells = {(row["rate"], row["method"]): row for row in rows}
    rates = list(dict.fromkeys(row["rate"] for row in rows))
    names = list(dict.fromkeys(row["method"] for row in rows))
    title = (
        f"{measured['date'][:10]}, {measured['ranks']} ranks on {measured['machine']['cores']} "
        f"cores, {measured['numel'] / 1e6:.1f} M parameters, Gloo. Milliseconds per step: "
        f"predicted / measured (median of up to {measured['rounds']} rounds), and the error."
    )
    lines = [[name, *(_cell(cells[rate, name]) for rate in rates)] for name in names]
    compute = [median(row["compute"] for row in rows if row["rate"] == rate) for rate in rates]
    lines.append(["no exchange", *(f"{1e3 * each:.0f}" for each in compute)])
    shown = pages.table(["", *map(name_of, rates)], lines)
    return f"{title}\n\n{shown}\n\n{_summary(rows)}"


def _cell(row: Row) -> str:
    return f"{1e3 * row['predicted']:.0f} / {1e3 * row['measured']:.0f} {row['error']:+.0%}"


def _summary(rows: Sequence[Row]) -> str:
    errors = sorted(abs(row["error"]) for row in rows)
    within = sum(each <= 0.15 for each in errors)
    return (
        f"{within} of {len(errors)} predictions are within 15 %; the median error is "
        f"{errors[len(errors) // 2]:.0%}, the largest {errors[-1]:.0%}."
    )


# ``auto`` compared with every setting that can be chosen by hand.

AUTO_BLOCK = "auto and all others"
MOST = 600  # steps that auto may take to settle
LATER, AFTER = 400, 30.0  # steps and seconds, at most, that it goes on for afterwards
MOST_STEPS, LIMIT = 12, 3.0  # steps and seconds of a turn

Ask = Callable[..., list[dict[str, Any]]]


def measure_auto(ranks: int, rates: Sequence[int | None], rounds: int) -> dict[str, Any]:
    """Measure all steps on links of these rates."""
    outcomes = []
    methods = (*DENSE, *BY_HAND, "auto")
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
            later: list[float] = []
            while sum(later) < AFTER and len(later) < LATER:
                later += slowest(processes.ask(do="steps", method="auto", count=4))
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
        if answers[0]["decision"].startswith("Using "):
            return start, True
    return start, False


def take_turns(ask: Ask, methods: Sequence[str], rounds: int) -> dict[str, Any]:
    """Have all methods take turns; of each, the first step does not count."""
    seconds: dict[str, list[list[float]]] = {method: [] for method in methods}
    counts: dict[str, int] = {}
    for method in methods:  # DDP rebuilds its buckets, and codecs learn their sizes
        taken = slowest(ask(do="steps", method=method, count=3))[-1]
        counts[method] = max(3, min(MOST_STEPS, round(LIMIT / taken)))
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


def table_auto(measured: Mapping[str, Any]) -> str:
    """Return the table in Markdown, and what ``auto`` said of each link."""
    outcomes = measured["outcomes"]
    headings = [*outcomes[0]["seconds"], "auto vs. best", "auto vs. fp32", "first steps"]
    title = (
        f"Measured on {measured['date'][:10]}: {measured['ranks']} ranks on "
        f"{measured['machine']['cores']} cores, 8.4 M parameters, AdamW, Gloo. Median milliseconds "
        "per step; the fastest setting on each link is in bold."
    )
    rows = [[name_of(each["rate"]), *_auto_cells(each)] for each in outcomes]
    said = "\n".join(f"* {name_of(each['rate'])}: {each['decision']}" for each in outcomes)
    return f"{title}\n\n{pages.table(['link', *headings], rows)}\n\n`auto` reports:\n\n{said}"


def _auto_cells(outcome: Mapping[str, Any]) -> list[str]:
    found = {
        method: median(each for turn in turns for each in turn)
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
