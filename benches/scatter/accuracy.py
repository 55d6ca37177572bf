"""Loss of short trainings, by exchange.

The text of ``gradwire demo`` with simulated ranks, which train as real ones do, bit for bit: see
tests/distributed/test_simulated.py. The optimizer is that which is recommended for a codec, at the
rate that is best for it with an all-gather and 2 ranks. Finished runs are kept: the same command
goes on.
"""

import dataclasses
import itertools
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import gradwire
from benches.accuracy.methods import Method
from benches.accuracy.run import run
from benches.accuracy.worker import make_task
from benches.compare import blocks
from gradwire import Codec
from gradwire.cli.training.machine import machine, versions
from gradwire.cli.training.optimizers import recipe_for
from gradwire.cli.training.rates import rate_for
from gradwire.exchange import QuantizedAllReduce, ReduceScatter
from gradwire.presets import PRESETS

__all__ = ["BLOCK", "RESULTS", "measure", "show", "write"]

RESULTS = Path(__file__).parents[1] / "results" / "2026-11-22-scatter-accuracy.json"
BLOCK = "accuracy by exchange"
TASK, USUAL = "text", "adamw"
NAMES = ("topk", "onebit", "adaptive", "signsgd", "qsgd", "terngrad", "natural", "float8")
RANKS = (4, 2)
SEED = 1
STEPS = 300

Key = tuple[str, str, int]
"""Preset or "none", exchange, ranks."""


def owners(codec: Codec) -> Codec:
    """Return a codec with the exchange of owners that takes it."""
    exchange = ReduceScatter() if codec.sparsify.selects else QuantizedAllReduce()
    return dataclasses.replace(codec, exchange=exchange)


def plan() -> Iterator[Key]:
    """Yield all runs. Dense training is the same with any number of ranks but for rounding."""
    yield "none", "", 2
    for ranks, name in itertools.product(RANKS, NAMES):
        yield name, "gathered", ranks
        yield name, "owned", ranks


def train(key: Key, task: Any) -> dict[str, Any]:
    """Make a run, and return what is kept of it."""
    name, exchange, ranks = key
    codec = None if name == "none" else PRESETS[name].build(**PRESETS[name].example)
    recipe = recipe_for(USUAL, codec)
    rate = rate_for(TASK, name, codec, str(recipe)).value
    if codec is not None and exchange == "owned":
        codec = owners(codec)
    method = Method(codec, recipe.kind, dict(recipe.options))
    curve = run(task, method, rate, ranks=ranks, seed=SEED, steps=STEPS, evaluations=1)
    point = {} if curve.diverged else curve.points[-1]
    return {"run": list(key), "rate": rate, "nbytes": curve.bytes_per_step, **point}


def measure(path: Path) -> None:
    """Make the runs that are missing."""
    torch.set_num_threads(1)
    gradwire.set_num_threads(1)
    kept = json.loads(path.read_text("utf-8")) if path.exists() else {}
    rows = kept.get("rows", []) if kept.get("steps") == STEPS else []
    done, task = {tuple(row["run"]) for row in rows}, make_task(TASK, None)
    for key in plan():
        if key in done:
            continue
        began = time.monotonic()
        rows.append(train(key, task))
        whole = {"steps": STEPS, "machine": machine(), "versions": versions(), "rows": rows}
        path.write_text(json.dumps(whole, indent=1) + "\n", "utf-8")
        print(f"{key}: {rows[-1].get('loss')}, {time.monotonic() - began:.0f} s", file=sys.stderr)


def show(rows: list[dict[str, Any]], source: str) -> list[str]:
    """Return the table in Markdown: what is not measured is left out."""
    found = {tuple(row["run"]): row for row in rows}

    def cell(key: Key) -> str:
        row = found.get(key)
        if row is None:
            return ""
        return f"{row['loss']:.3f}" if "loss" in row else "diverged"

    ranks = sorted({each for name, _, each in found if name != "none"})
    names = [name for name in NAMES if any(name == key[0] for key in found)]
    lines = [
        f"Held-out loss after {STEPS} steps on text; {cell(('none', '', 2))} without compression.",
        f"From `{source}`.",
        "",
        f"| codec | {' | '.join(f'{each} ranks, all-gather | owners' for each in ranks)} |",
        "|---|" + "---:|---:|" * len(ranks),
    ]
    for name in names:
        cells = [cell((name, way, each)) for each in ranks for way in ("gathered", "owned")]
        lines.append(f"| `{PRESETS[name].call}` | {' | '.join(cells)} |")
    return lines


def write(path: Path, into: Path | None) -> None:
    """Print the table of a file, and write it into a page."""
    lines = show(json.loads(path.read_text("utf-8"))["rows"], f"benches/results/{path.name}")
    print("\n".join(lines))
    if into is not None:
        blocks.replace(into, BLOCK, lines)
