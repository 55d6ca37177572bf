"""What a run has found, as it is published: rows, and layers that are compared."""

import math
from collections.abc import Callable, Iterator, Mapping
from statistics import fmean
from typing import Any

from benches.harness.results import Record
from benches.weights.plan import Run

from .plan import COMQ, GPTQ, METHODS, PAPER, RANGE, SQUARES, ZERO, Setting

Row = Mapping[str, Any]
Rows = Mapping[Setting, Row]

RIVALS = (ZERO, RANGE, SQUARES, GPTQ, PAPER)
"""Beside which every layer of COMQ is looked at."""
_CLOSE = 1e-6
"""In parts, by which objectives may differ that are sums of the same numbers."""

_KEPT = (
    "loss",
    "accuracy",
    "parameters",
    "entries",
    "packed_bytes",
    "bytes",
    "pack_seconds",
    "clips",
    "read",
)


def row(run: Run, record: Record) -> dict[str, Any]:
    """Return a record as it is published."""
    found = {
        "model": run.model.name,
        "title": run.model.title,
        "setting": record["key"]["setting"],
        **{name: record[name] for name in _KEPT if name in record},
    }
    if record.get("layers"):
        errors = [math.sqrt(error) for _, error, _ in record["layers"].values()]
        found["output_error"] = float(f"{fmean(errors):.4g}")
        bits = {name: bits for name, (bits, _, _) in record["layers"].items()}
        if len(set(bits.values())) > 1:
            found["bits"] = bits
    return found


def layers(records: Mapping[Run, Record]) -> list[dict[str, Any]]:
    """Return how often and how far a layer's objective is worse by COMQ than by each rival."""
    return list(_compared(records))


def _compared(records: Mapping[Run, Record]) -> Iterator[dict[str, Any]]:
    for rival in RIVALS:
        count = worse = 0
        worst, ratios = 0.0, []
        for run, record in records.items():
            setting = run.setting
            if setting is None or setting.method != COMQ:
                continue
            seed = setting.seed if METHODS[rival].rounding else 0
            other = Run(run.model, Setting(rival, setting.bits, setting.block, seed))
            if other not in records or (seed == 0 and setting.seed != 1):
                continue
            for name, (_, _, own) in record["layers"].items():
                theirs = records[other]["layers"][name][2]
                ratio = own / theirs if theirs else float(own > 0)
                count += 1
                worse += ratio > 1 + _CLOSE
                worst = max(worst, ratio)
                ratios.append(ratio)
        if count:
            mean = float(f"{fmean(ratios):.4g}")
            found = {"rival": rival, "layers": count, "worse": worse, "worst": worst}
            yield {**found, "mean": mean}


def by_model(document: Mapping[str, Any]) -> dict[str, dict[Setting, Row]]:
    """Return the rows of each model by setting, where the unpacked model is among them."""
    found: dict[str, dict[Setting, Row]] = {}
    for each in document["rows"]:
        found.setdefault(each["model"], {})[Setting(**each["setting"])] = each
    return {name: rows for name, rows in found.items() if Setting() in rows}


def seeds(rows: Rows, method: str, bits: float, block: int) -> list[Row]:
    """Return the rows of a method, one for each seed of calibration."""
    return [
        row
        for each, row in rows.items()
        if (each.method, each.bits, each.block) == (method, bits, block)
    ]


def mean(found: list[Row], name: str = "loss") -> float:
    """Return a mean over seeds; NaN of none."""
    return fmean(float(row[name]) for row in found) if found else math.nan


def spread(found: list[Row], name: str = "loss") -> float:
    """Return the largest less the least over seeds; zero of one."""
    values = [float(row[name]) for row in found]
    return max(values) - min(values) if values else 0.0


Gap = Callable[[str, float], float]


def gap_of(rows: Rows, block: int) -> Gap:
    """Return what gives a method's loss above float32 at so many bits, on average over seeds."""
    plain = float(rows[Setting()]["loss"])

    def gap(method: str, bits: float) -> float:
        return mean(seeds(rows, method, bits, block)) - plain

    return gap
