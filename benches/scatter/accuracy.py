"""Loss of short trainings, by exchange.

The text of ``make demo`` with simulated ranks, which train as real ones do, bit for bit: see
tests/distributed/test_simulated.py. The optimizer is that which is recommended for a codec, at the
rate that is best for it with an all-gather and 2 ranks. Finished runs are kept, one JSON object a
line: the same command goes on.
"""

import dataclasses
import itertools
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import gradwire
from benches.accuracy.methods import Method
from benches.accuracy.run import run
from benches.accuracy.store import Lines, Record
from benches.accuracy.worker import make_task
from benches.circumstances import circumstances, listed, same_versions
from benches.compare import blocks
from benches.harness.optimizers import recipe_for
from benches.harness.rates import rate_for
from gradwire import Codec
from gradwire.exchange import QuantizedAllReduce, ReduceScatter
from gradwire.presets import PRESETS

__all__ = ["BLOCK", "RESULTS", "current", "measure", "show", "write"]

RESULTS = Path(__file__).parents[1] / "results" / "scatter-accuracy.jsonl"
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
    """Make the runs that are missing; those that were made with other versions are made again."""
    torch.set_num_threads(1)
    gradwire.set_num_threads(1)
    kept = Lines(path)
    done, task = {key_of(row) for row in current(kept) if same_versions(row)}, None
    for key in plan():
        if key in done:
            continue
        began = time.monotonic()
        task = task or make_task(TASK, None)
        row = {"steps": STEPS, **train(key, task), **circumstances()}
        kept.add(row)
        print(f"{key}: {row.get('loss')}, {time.monotonic() - began:.0f} s", file=sys.stderr)


def key_of(row: Record) -> Key:
    """Return which run a row is of."""
    name, exchange, ranks = row["run"]
    return name, exchange, ranks


def current(kept: Lines) -> list[Record]:
    """Return the runs of so many steps, of each the last."""
    found = {key_of(row): row for row in kept.records if row["steps"] == STEPS}
    return list(found.values())


def show(rows: list[Record], source: str) -> list[str]:
    """Return the table in Markdown: what is not measured is left out."""
    found = {key_of(row): row for row in rows}

    def cell(key: Key) -> str:
        row = found.get(key)
        if row is None:
            return ""
        return f"{row['loss']:.3f}" if "loss" in row else "diverged"

    ranks = sorted({each for name, _, each in found if name != "none"})
    names = [name for name in NAMES if any(name == key[0] for key in found)]
    lines = [
        f"Held-out loss after {STEPS} steps on text; {cell(('none', '', 2))} without compression.",
        f"From `{source}`: {listed(rows)}",
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
    lines = show(current(Lines(path)), f"benches/results/{path.name}")
    print("\n".join(lines))
    if into is not None:
        blocks.replace(into, BLOCK, lines)
