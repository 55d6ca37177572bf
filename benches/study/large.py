"""Train the large model of the study, whose steps it times, to an accuracy with each method.

    python -m benches.study.large --into docs/study.md

The study compares step rates of 25 M parameters on random rows. Here the same network learns
Fashion-MNIST, with the optimizer, the ranks and the rows per step of the study, so that the methods
whose step rates are compared are known to end equally accurate. Ranks are simulated, one core each
run: twenty minutes on two. Finished runs are kept, and the same command goes on where it was
interrupted.
"""

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benches import stopping
from benches.accuracy.pool import Pool
from benches.accuracy.store import Lines, Record, versions
from benches.accuracy.tables import head, row
from benches.accuracy.tasks import fashion_data
from benches.accuracy.tasks.fashion import SEED, Fashion
from benches.accuracy.worker import Tasks, serve_with, train
from benches.compare import blocks
from benches.harness.machine import cores, machine

from . import methods, models

RESULTS = blocks.ROOT / "benches" / "results" / "study-large.jsonl"
BLOCK = "large model"
RANKS, STEPS, SEEDS = 2, 234, 2
"""Two passes over the data."""
STARTS = {methods.FP32: 2.5e-4, "adam(0.01)": 5e-4}
"""Where the searches for learning rates begin, of which each tries the double first."""
MOST = 6
"""Learning rates that are tried at most."""


class Deep(models.Network):
    """The network of the study on images: zeros fill its input, and ten outputs are logits."""

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits."""
        x = images.flatten(1)
        x = functional.pad(x, (0, models.WIDTH - x.shape[1]))
        *others, last = self.layers
        for weight in others:
            x = functional.relu(functional.linear(x, weight))
        return functional.linear(x, last)[:, :10]


class LargeFashion(Fashion):
    """Fashion-MNIST, learned by the large model with as many rows a rank as in the study."""

    def __init__(self, place: Path | None) -> None:
        super().__init__(place, global_batch=RANKS * models.ROWS)

    def model(self, seed: int) -> nn.Module:
        """Return a newly initialized model: the logits begin small."""
        torch.manual_seed(SEED + seed)
        scale = (2 / models.WIDTH) ** 0.5
        weights = torch.randn(models.LAYERS, models.WIDTH, models.WIDTH).mul_(scale)
        weights[-1] *= 0.1
        return Deep(weights)


@dataclass(frozen=True)
class Run:
    """One training run."""

    method: str
    learning_rate: float
    seed: int

    def key(self) -> dict[str, Any]:
        """Return everything that determines it, as plain data."""
        curve = methods.compared("text")[self.method].curve
        assert curve is not None
        shape = [models.LAYERS, models.WIDTH, models.ROWS]
        return {**asdict(self), "ranks": RANKS, "steps": STEPS, "shape": shape,
                "config": curve.config(), "torch": versions()["torch"]}  # fmt: skip


Made = Mapping[Run, Record]


def made(kept: Lines, *, here: bool = True) -> dict[Run, Record]:
    """Return the runs that a file has, made with the same settings.

    With ``here``, those of this version of torch; what only shows them takes those of any.
    """
    found = {}
    for record in kept.records:
        saved = record["key"]
        run = Run(saved["method"], saved["learning_rate"], saved["seed"])
        if saved == run.key() | ({} if here else {"torch": saved["torch"]}):
            found[run] = record
    return found


def accuracy(record: Record) -> float:
    """Return the share of held-out images that are told at the end."""
    return 0.0 if record["diverged"] else float(record["points"][-1]["accuracy"])


def best_rate(method: str, runs: Made) -> tuple[float | None, list[float]]:
    """Return the best learning rate of the first seed, or those that have to be tried first."""
    first = STARTS[method]
    rates = [first, 2 * first]
    if missing := [rate for rate in rates if Run(method, rate, 0) not in runs]:
        return None, missing
    while len(rates) < MOST:
        best = max(rates, key=lambda rate: accuracy(runs[Run(method, rate, 0)]))
        if min(rates) < best < max(rates):
            break
        further = best / 2 if best == min(rates) else 2 * best
        rates.append(further)
        if Run(method, further, 0) not in runs:
            return None, [further]
    return max(rates, key=lambda rate: accuracy(runs[Run(method, rate, 0)])), []


@dataclass
class Asked:
    """The runs that a file lacks, for a pool."""

    kept: Lines

    def missing(self) -> Sequence[Run]:
        """Return what is known to be needed and not there."""
        runs, found = made(self.kept), []
        for method in STARTS:
            rate, wanted = best_rate(method, runs)
            found += [Run(method, each, 0) for each in wanted]
            if rate is not None:
                found += [Run(method, rate, seed) for seed in range(1, SEEDS)]
        return [run for run in found if run not in runs]

    def order(self, run: Run) -> Run:
        """Return what a process has to know of a run."""
        return run

    def keep(self, run: Run, outcome: dict[str, Any]) -> Record:
        """Keep what a process has answered."""
        record = {"key": run.key(), "machine": machine(), "versions": dict(versions()), **outcome}
        self.kept.add(record)
        return record


def trained(run: Run, data: Path | None, tasks: Tasks) -> dict[str, Any]:
    """Train in a process of a pool."""
    if "large" not in tasks:
        tasks["large"] = LargeFashion(data)
    method = methods.compared("text")[run.method].curve
    options = {"ranks": RANKS, "seed": run.seed, "steps": STEPS}
    return train(tasks["large"], method, run.learning_rate, **options)


def serve(pipe: Any, data: Path | None) -> None:
    """Make runs until the pipe is closed."""
    serve_with(trained, pipe, data)


def table(runs: Made) -> Iterator[str]:
    """Yield the lines of the table."""
    yield from head("at the end", "accuracy %", "points", "learning rates (seeds)")
    dense = None
    for method in STARTS:
        rate, _ = best_rate(method, runs)
        if rate is None:
            continue
        of = [
            accuracy(runs[run]) for run in runs if (run.method, run.learning_rate) == (method, rate)
        ]
        reached = 100 * mean(of)
        dense = reached if dense is None else dense
        tried: dict[float, int] = {}
        for run in sorted(runs, key=lambda each: each.learning_rate):
            if run.method == method:
                tried[run.learning_rate] = tried.get(run.learning_rate, 0) + 1
        shown = ", ".join(
            f"**{each:g} ({count})**" if each == rate else f"{each:g} ({count})"
            for each, count in tried.items()
        )
        yield row(method, f"{reached:.2f}", f"{reached - dense:+.2f}", shown)


def main() -> None:
    """Make the runs that are missing, and write the table."""
    parser = argparse.ArgumentParser(
        prog="python -m benches.study.large",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, default=RESULTS, metavar="FILE", help="finished runs")
    parser.add_argument("--into", type=Path, metavar="PAGE", help="a page that has the block")
    parser.add_argument("--jobs", type=int, default=cores(), help="processes (default: cores)")
    parser.add_argument("--data", type=Path, metavar="DIR", help="folder of Fashion-MNIST")
    chosen = parser.parse_args()
    asked = Asked(Lines(chosen.out))

    def tell(run: Run, record: Record) -> None:
        text = f"{run.method}, rate {run.learning_rate:g}, seed {run.seed}"
        print(f"{text}: {100 * accuracy(record):.2f} %, {record['seconds']:.0f} s", flush=True)

    if asked.missing():
        fashion_data.folder(chosen.data)
        with Pool(chosen.jobs, chosen.data, serve) as pool:
            pool.make(asked, tell)
    lines = list(table(made(asked.kept, here=False)))
    print("\n".join(lines))
    if chosen.into is not None:
        blocks.replace(chosen.into, BLOCK, lines)


if __name__ == "__main__":
    sys.exit(stopping.run(main))
