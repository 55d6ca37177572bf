"""How many positions the selections of many ranks have in common: measured, and fitted.

    python -m benches.support                  # measures, and writes a file of benches/results
    python -m benches.support --fit            # fits what was measured, and prints a table
    python -m benches.support --fit --into docs/cost.md

Ranks are simulated: up to 64, with a batch of their own each, and top-k with error feedback. After
some steps of training, the positions that the first N ranks have selected are counted, all
parameters that are compressed together. The fit is that of `gradwire.cost.Support`, to all but the
first step, in which residuals are still empty.
"""

import argparse
import itertools
import json
import math
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import gradwire
from benches.harness.digits import Digits
from benches.harness.machine import machine, versions
from benches.harness.tasks import Task, loss_sum
from benches.harness.text import Text
from gradwire.cost import Support

from .accuracy.flat import Flat
from .compare import blocks

RESULTS = Path(__file__).with_name("results") / "2026-11-22-support.json"
RANKS = 64
STEPS = (1, 10, 40)
RATIOS = (0.001, 0.01, 0.1)
TASKS: dict[str, tuple[Callable[[], Task], float]] = {
    # 16 images or 2 windows for each of 64 ranks; SGD at rates that train without compression.
    "digits": (lambda: Digits(batch=16), 0.128),
    "text": (lambda: Text(batch=2), 0.128),
}


def counts() -> list[int]:
    """Return the numbers of ranks at which unions are counted."""
    return [2**power for power in range(RANKS.bit_length())]


def capture(name: str, ratio: float) -> list[dict[str, Any]]:
    """Train, and return the sizes of unions at some steps."""
    make, rate = TASKS[name]
    task = make()
    model = task.model()
    flat = Flat(model)
    codec = gradwire.topk(ratio=ratio)
    states = [
        [codec.init_state(piece.stop - piece.start) for piece in flat.pieces] for _ in range(RANKS)
    ]
    batches = [task.batches(rank, RANKS) for rank in range(RANKS)]
    rows = []
    for step in range(1, max(STEPS) + 1):
        total = np.zeros(flat.gradients.numel(), np.float32)
        selected = np.zeros(flat.cut, np.bool_)
        union: dict[int, int] = {}
        each: list[int] = []
        for rank in range(RANKS):
            flat.gradients.zero_()
            loss, _, count = loss_sum(model, next(batches[rank]))
            (loss / count).backward()  # type: ignore[no-untyped-call]
            own = flat.gradients.numpy()
            total[flat.cut :] += own[flat.cut :]
            sent = 0
            for piece, state in zip(flat.pieces, states[rank], strict=True):
                place = slice(piece.start, piece.stop)
                decoded = gradwire.decode(codec.encode(own[place], state))
                total[place] += decoded
                selected[place] |= decoded != 0
                sent += int(np.count_nonzero(decoded))
            each.append(sent)
            if rank + 1 in counts():
                union[rank + 1] = int(np.count_nonzero(selected))
        with torch.no_grad():
            flat.parameters.sub_(torch.from_numpy(total), alpha=rate / RANKS)
        if step in STEPS:
            numel = sum(piece.stop - piece.start for piece in flat.pieces)
            rows.append({"task": name, "ratio": ratio, "step": step, "numel": numel,
                         "entries": sum(each) / RANKS, "union": union})  # fmt: skip
    return rows


def measure() -> dict[str, Any]:
    """Measure everything."""
    rows = []
    for name, ratio in itertools.product(TASKS, RATIOS):
        began = time.monotonic()
        rows += capture(name, ratio)
        print(f"{name}, {ratio:g}: {time.monotonic() - began:.0f} s", file=sys.stderr)
    return {"ranks": RANKS, "machine": machine(), "versions": versions(), "rows": rows}


def errors(rows: Iterable[dict[str, Any]], support: Support) -> list[float]:
    """Return predicted over measured unions, of more than one rank."""
    return [
        support.union(row["entries"] / row["numel"], int(ranks)) * row["numel"] / union
        for row in rows
        for ranks, union in row["union"].items()
        if int(ranks) > 1
    ]


def fit(rows: list[dict[str, Any]]) -> Support:
    """Return the support with the least squares of log errors: a grid that is refined."""
    best = scale, exponent = 0.0, 0.0
    width = 4.0
    while width > 1e-3:
        grid = np.linspace(-width, width, 9)
        best = min(
            ((scale + a, exponent + b) for a in 3 * grid for b in grid),
            key=lambda at: sum(
                math.log(each) ** 2 for each in errors(rows, Support(math.exp(at[0]), at[1]))
            ),
        )
        (scale, exponent), width = best, width / 2
    return Support(float(f"{math.exp(scale):.3g}"), float(f"{exponent:.3g}"))


def show(measured: dict[str, Any]) -> list[str]:
    """Return tables in Markdown."""
    rows = measured["rows"]
    numbers = [each for each in counts() if each > 1]
    head = "| | ratio | step | " + " | ".join(f"{each} ranks" for each in numbers) + " |"
    lines = [head, "|---|---:|---:|" + "---:|" * len(numbers)]
    for row in rows:
        union = {int(ranks): size / row["entries"] for ranks, size in row["union"].items()}
        cells = " | ".join(f"{union[each]:.2f}" for each in numbers)
        lines.append(f"| {row['task']} | {row['ratio']:g} | {row['step']} | {cells} |")
    return lines


def fits(rows: list[dict[str, Any]]) -> list[str]:
    """Return the table of fits."""
    lines = ["| | scale | exponent | median error | largest error |", "|---|---:|---:|---:|---:|"]
    lines.append(said("fitted to all", fit(rows), rows))
    for task in TASKS:
        own = [row for row in rows if row["task"] == task]
        lines.append(said(f"fitted to {task}", fit(own), own))
    lines.append(said("`Support()`", Support(), rows))
    lines.append(said("independent ranks", Support(1e300, 0.0), rows))
    return lines


def said(name: str, support: Support, rows: list[dict[str, Any]]) -> str:
    """Return a fit and its errors, in a row."""
    off = sorted(abs(each - 1) for each in errors(rows, support))
    median, most = off[len(off) // 2], off[-1]
    numbers = f"{support.scale:.3g} | {support.exponent:.3g}" if support.exponent else " | "
    return f"| {name} | {numbers} | {median:.0%} | {most:.0%} |"


def main() -> None:
    """Measure or fit."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--fit", action="store_true", help="fit what was measured before")
    parser.add_argument("--file", type=Path, default=RESULTS)
    parser.add_argument("--into", type=Path, help="a page that has the block")
    options = parser.parse_args()
    if not options.fit:
        text = json.dumps(measure(), indent=1)
        options.file.write_text(text + "\n", "utf-8")
    measured = json.loads(options.file.read_text("utf-8"))
    rows = measured["rows"]
    lines = [*show(measured), "", *fits([row for row in rows if row["step"] > 1])]
    print("\n".join(lines))
    if options.into is not None:
        blocks.replace(options.into, "union of selections", lines)


if __name__ == "__main__":
    main()
