"""Step times as `gradwire.cost` predicts them, beside those of real processes over shaped links.

    python -m benches.plan [--out FILE] [--into docs/cost.md]

Processes in network namespaces train a network of 8.4 M parameters over links of known speed, as
root or where user namespaces are allowed. The model sees what a user can measure beforehand: a
step without any exchange, codecs on these machines, and the link by all-reduces. Methods take
turns. Other work on the machine can only lengthen a step, so every figure, of what the model takes
and of what it is judged by, is the fastest of several; a link is the middle one.
"""

import argparse
import json
import os
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from benches.compare import blocks
from benches.compare.exchange import Rank, together
from gradwire.cli.training.link import format_rate, open_link, parse_rate
from gradwire.cli.training.machine import machine, versions
from gradwire.cost import (
    Calibration,
    CodecCost,
    Link,
    Method,
    Network,
    Workload,
    bf16,
    compressed,
    fp32,
    predict,
)

from .rank import LAYERS, METHODS, NUMEL

RATES = ("100mbit", "1gbit")
PROFILED = 15  # steps without any exchange, before and after the others
TIMES = 3  # that codecs and links are measured


def measure(ranks: int, rates: list[int], rounds: int) -> dict[str, Any]:
    """Measure all that the model takes, and the steps that it is judged by."""
    load = os.getloadavg()
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="gradwire-bench-"))
        link, why_not = open_link(ranks)
        stack.enter_context(link)
        if why_not is not None:
            raise SystemExit(f"no shaped link: {why_not}")
        processes = []
        for number in range(ranks):
            processes.append(Rank(link, number, folder, "benches.plan.rank", ranks=ranks))
            stack.callback(processes[-1].close)
        together(processes)  # each says so when it has joined the others

        def ask(**command: Any) -> list[dict[str, Any]]:
            for process in processes:
                process.tell(**command)
            return together(processes)

        calibrations = [each for _ in range(TIMES) for each in ask(do="calibrate", seconds=0.5)]
        outcomes = []
        for rate in rates:
            print(f"{format_rate(rate)}", file=sys.stderr)
            link.set_rate(rate)
            links = [ask(do="link", seconds=1.0)[0] for _ in range(TIMES)]
            profiles = slowest(ask(do="profile", steps=PROFILED))
            seconds: dict[str, list[float]] = {method: [] for method in METHODS}
            worked: dict[str, list[float]] = {method: [] for method in METHODS}
            for turn in range(rounds):
                at = turn % len(METHODS)
                for method in (*METHODS[at:], *METHODS[:at]):
                    answers = ask(do="step", method=method)
                    seconds[method].append(max(each["seconds"] for each in answers))
                    worked[method] += [each["cpu"] for each in answers]
            profiles += slowest(ask(do="profile", steps=PROFILED))
            found = {"rate": rate, "links": links, "profiles": profiles, "seconds": seconds}
            outcomes.append(found | {"processor_seconds": worked})
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "versions": {**versions(), "torch": torch.__version__},
        "load": {"before": load, "after": os.getloadavg()},
        "ranks": ranks,
        "numel": NUMEL,
        "tensors": LAYERS,
        "calibrations": calibrations,
        "outcomes": outcomes,
    }


def slowest(answers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return each step as its slowest rank has seen it."""
    together = zip(*(each["steps"] for each in answers), strict=True)
    return [max(each, key=lambda step: float(step["seconds"])) for each in together]


def workload(measured: dict[str, Any], outcome: dict[str, Any]) -> Workload:
    """Return the fastest step without any exchange."""
    step = min(outcome["profiles"], key=lambda each: float(each["seconds"]))
    backward = step["backward"]
    return Workload(
        measured["numel"],
        backward,
        step["seconds"] - backward,
        buckets=step["buckets"],
        ready=[min(backward, at) for at in step["ready"]],
        tensors=measured["tensors"],
        shared=True,  # a core for each rank
    )


def link_of(outcome: dict[str, Any]) -> Link:
    """Return the link in the middle: what is fitted may err to both sides."""
    links = sorted(outcome["links"], key=lambda each: float(each["bandwidth"]))
    return Link(**links[len(links) // 2])


def quickest(plain: list[dict[str, Any]]) -> Calibration:
    """Return the fastest encode and decode of each codec, for a tensor of a million entries."""
    every = [Calibration.from_json(each) for each in plain]

    def best(name: str) -> CodecCost:
        costs = [each.codecs[name] for each in every]
        entries = 1e6 * costs[0].share
        return replace(
            costs[0],
            encode=min((each.encode for each in costs), key=lambda line: line(1e6, entries)),
            decode=min((each.decode for each in costs), key=lambda line: line(1e6, entries)),
        )

    return replace(
        every[0],
        codecs={name: best(name) for name in every[0].codecs},
        cast_seconds=min(each.cast_seconds for each in every),
        clear_seconds=min(each.clear_seconds for each in every),
    )


def methods(calibration: Calibration) -> list[Method]:
    """Return what is predicted."""
    return [fp32(), bf16(calibration), *(compressed(name, calibration) for name in METHODS[2:])]


def predictions(measured: dict[str, Any]) -> list[dict[str, Any]]:
    """Return predicted and measured seconds of each rate and method."""
    calibration = quickest(measured["calibrations"])
    rows = []
    for outcome in measured["outcomes"]:
        network = Network(measured["ranks"], link_of(outcome))
        work = workload(measured, outcome)
        for method in methods(calibration):
            found = predict(work, method, network)
            real = min(outcome["seconds"][method.name])
            rows.append({"rate": outcome["rate"], "method": method.name, "compute": work.compute,
                         "predicted": found.step, "measured": real,
                         "error": found.step / real - 1})  # fmt: skip
    return rows


def table(measured: dict[str, Any]) -> list[str]:
    """Return the table in Markdown."""
    rows = predictions(measured)
    cells = {(row["rate"], row["method"]): row for row in rows}
    rates = [outcome["rate"] for outcome in measured["outcomes"]]
    title = (
        f"Measured on {measured['date'][:10]}, {measured['ranks']} ranks with a core each, "
        f"{measured['numel'] / 1e6:.1f} M parameters, Gloo; milliseconds of a step, the fastest "
        f"of {len(next(iter(measured['outcomes'][0]['seconds'].values())))}."
    )
    lines = [
        title,
        "",
        "| | " + " | ".join(f"{format_rate(rate)}: predicted | measured | error" for rate in rates)
        + " |",
        "|---|" + "---:|---:|---:|" * len(rates),
    ]  # fmt: skip
    for method in METHODS:
        found = [cells[rate, method] for rate in rates]
        lines.append(
            f"| {method} | "
            + " | ".join(
                f"{1e3 * row['predicted']:.0f} | {1e3 * row['measured']:.0f} | {row['error']:+.0%}"
                for row in found
            )
            + " |"
        )
    compute = [next(row["compute"] for row in rows if row["rate"] == rate) for rate in rates]
    lines.append(
        "| no exchange | " + " | ".join(f"| {1e3 * each:.0f} | " for each in compute) + " |"
    )
    return lines


def main() -> None:
    """Measure, predict and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rates", default=",".join(RATES), help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=2 * len(METHODS),
                        help="turns of all methods; a multiple of their number puts each in each "
                        "place as often (default: %(default)s)")  # fmt: skip
    parser.add_argument("--out", type=Path, help="keep what was measured")
    parser.add_argument("--show", type=Path, metavar="FILE", help="what --out kept")
    parser.add_argument("--into", type=Path, help="a page that has the block")
    options = parser.parse_args()
    if options.show is not None:
        measured = json.loads(options.show.read_text("utf-8"))
    else:
        rates = [parse_rate(each) for each in options.rates.split(",")]
        measured = measure(options.ranks, rates, options.rounds)
    if options.out is not None:
        options.out.write_text(json.dumps(measured, indent=1) + "\n", "utf-8")
    lines = table(measured)
    print("\n".join(lines))
    if options.into is not None:
        blocks.replace(options.into, "predicted and measured", lines)


if __name__ == "__main__":
    main()
