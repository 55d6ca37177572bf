"""Predict what was measured, and tell by how much that errs."""

from collections.abc import Sequence
from statistics import median
from typing import Any

from benches.harness import pages
from gradwire.cli.plan.quantities import format_rate
from gradwire.cost import (
    Calibration,
    Link,
    Method,
    Network,
    Workload,
    bf16,
    compressed,
    fp32,
    predict,
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


def workload(outcome: dict[str, Any], method: str, *, updates: bool = False) -> Workload:
    """Return the middle step without any exchange.

    If the codec sends updates, with the optimizer that applies them in place of SGD.
    """
    every = _with(outcome["workloads"], method)
    every.sort(key=lambda each: float(each["backward"] + each["other"]))
    more = median(each.pop("applying") for each in every)
    facts = every[len(every) // 2]
    return Workload(**facts | {"other": facts["other"] + (more if updates else 0.0)})


def link_of(outcome: dict[str, Any], method: str) -> Link:
    """Return the link in the middle: what is fitted may err to both sides."""
    links = sorted(_with(outcome["links"], method), key=lambda each: float(each["bandwidth"]))
    return Link(**links[len(links) // 2])


def method_of(name: str, measured: dict[str, Any]) -> Method:
    """Return what is predicted."""
    calibration = Calibration.from_json(measured["calibration"])
    if name == "fp32":
        return fp32()
    if name == "bf16":
        return bf16(calibration)
    method = compressed(name, calibration)
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
            network = Network(measured["ranks"], link_of(outcome, name))
            found = predict(work, method, network)
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
        f"cores, {measured['numel'] / 1e6:.1f} M parameters, Gloo. Milliseconds of a step: "
        f"predicted / measured, the median of up to {measured['rounds']} turns, and the error."
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
        f"{within} of {len(errors)} predictions are within 15 %; the error in the middle is "
        f"{errors[len(errors) // 2]:.0%}, the largest {errors[-1]:.0%}."
    )
