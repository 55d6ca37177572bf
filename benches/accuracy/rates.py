"""Measure the learning rates with which ``make demo`` and ``benches.presets`` train.

For each task and method the best of one grid, which has no ends: a search begins at the usual rate
of the optimizer and twice that, and goes on until the rates next to the best one are known. On the
digits the best one is trained with a second seed as well, and has to stay the best by the mean of
both: the network has no normalization, and next to rates that diverge one may be the best with one
seed and diverge with another. What is finished is kept in the table itself: the same command goes
on where it was interrupted.
"""

import argparse
import json
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import gradwire
from benches.harness import rates
from benches.harness.optimizers import Recipe, recipe_for
from gradwire import Codec
from gradwire.presets import PRESETS

from .methods import Method
from .run import run
from .store import versions
from .worker import make_task

TASKS = {"text": "adamw", "digits": "sgd"}
SETTINGS: dict[str, Any] = {
    "steps": 300,
    "ranks": 2,
    "seeds": {"text": [7], "digits": [7, 8]},
    "grid": "powers of two times 0.001",
}
"""As `python -m benches.presets` trains, but with seeds that neither it nor the demo uses."""

FIRST = (
    ("none", "topk", "adam", "adam_onebit"),
    ("sidco", "qsgd", "onebit", "sparseloco", "dgc"),
)
"""What people see first is measured first, on each task; then all other presets."""

DEMO = ("topk", "sidco", "adam")
DEMO_RATIO = 0.02
"""What the demo shows by default is measured at its ratio as well."""

MOST = 12
"""Runs of one search: a method that diverges at so many rates has none."""

Losses = dict[float, list[float | None]]
"""Held-out losses at the end, by learning rate, of the first seeds; None where the run diverged."""


@dataclass(frozen=True)
class Candidate:
    """A method on a task."""

    task: str
    name: str
    call: str
    codec: Codec | None
    recipe: Recipe

    def entry(self, losses: Losses) -> dict[str, Any]:
        """Return the line of the table; without a rate as long as the search goes on."""
        return {
            "method": self.name,
            "call": self.call,
            "codec": None if self.codec is None else self.codec.get_config(),
            "optimizer": str(self.recipe),
            "learning_rate": None if self.wanted(losses) else found(losses),
            "losses": {repr(each): losses[each] for each in sorted(losses)},
        }

    def wanted(self, losses: Losses) -> list[tuple[float, int]]:
        """Return the rates and seeds that the search needs next; none when it ends."""
        first = rates.USUAL[rates.family(str(self.recipe))]
        once, *others = SETTINGS["seeds"][self.task]
        if missing := [each for each in (first, 2 * first) if each not in losses]:
            return [(each, once) for each in missing]
        near = _best(losses)
        missing = [each for each in (near / 2, 2 * near) if each not in losses]
        if missing and len(losses) < MOST:
            return [(each, once) for each in missing]
        if _mean(losses[near]) == math.inf:
            return []
        return [(near, seed) for seed in others[len(losses[near]) - 1 :]]


def found(losses: Losses) -> float | None:
    """Return the best rate; None if all runs diverged."""
    best = _best(losses)
    return None if _mean(losses[best]) == math.inf else best


def _best(losses: Losses) -> float:
    """Return the best rate; if all runs diverged, the lowest."""
    return min(losses, key=lambda each: (_mean(losses[each]), each))


def _mean(losses: Sequence[float | None]) -> float:
    """Return the mean of the losses of one rate; infinite if a run diverged."""
    return math.fsum(math.inf if each is None else each for each in losses) / len(losses)


def candidates() -> Iterator[Candidate]:
    """Yield all methods on all tasks, in the order in which they are measured."""
    named = {name for names in FIRST for name in names}
    rest = tuple(name for name in PRESETS if name not in named)
    for task, usual in TASKS.items():
        yield from (_candidate(task, usual, name, {}) for name in FIRST[0])
    for task, usual in TASKS.items():
        yield from (_candidate(task, usual, name, {"ratio": DEMO_RATIO}) for name in DEMO)
        yield from (_candidate(task, usual, name, {}) for name in FIRST[1])
    for task, usual in TASKS.items():
        yield from (_candidate(task, usual, name, {}) for name in rest)


def _candidate(task: str, usual: str, name: str, options: Mapping[str, Any]) -> Candidate:
    if name == "none":
        return Candidate(task, name, name, None, recipe_for(usual, None))
    preset = PRESETS[name]
    given = {**preset.example, **options}
    codec = preset.build(**given)
    call = f"{name}({', '.join(f'{key}={value!r}' for key, value in given.items())})"
    return Candidate(task, name, call, codec, recipe_for(usual, codec))


class Table:
    """The table in the package, written after every run."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._saved: dict[str, list[dict[str, Any]]] = {}
        if path.exists():
            saved = json.loads(path.read_text("utf-8"))
            if saved["settings"] == SETTINGS:
                self._saved = saved["tasks"]

    def losses(self, candidate: Candidate) -> Losses:
        """Return what is known of a method."""
        name, optimizer = candidate.name, str(candidate.recipe)
        for each in self._saved.get(candidate.task, []):
            same = (each["method"], each["optimizer"]) == (name, optimizer)
            if same and rates.codec_of(each) == candidate.codec:
                return {float(rate): list(made) for rate, made in each["losses"].items()}
        return {}

    def write(self, known: Sequence[tuple[Candidate, Losses]]) -> None:
        """Write all that is known."""
        tasks: dict[str, list[dict[str, Any]]] = {task: [] for task in TASKS}
        for each, losses in known:
            tasks[each.task].append(each.entry(losses))
        whole = {"settings": SETTINGS, "versions": versions(), "tasks": tasks}
        part = self._path.with_suffix(".part")
        part.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
        part.replace(self._path)


def measure(path: Path, only: Sequence[str], until: float = math.inf) -> None:
    """Make the runs that are missing, up to a time."""
    table = Table(path)
    known = [(each, table.losses(each)) for each in candidates()]
    table.write(known)
    tasks: dict[str, Any] = {}
    for each, losses in known:
        if each.task not in only:
            continue
        method = Method(each.codec, each.recipe.kind, dict(each.recipe.options))
        while rest := each.wanted(losses):
            if time.time() > until:
                return
            if each.task not in tasks:
                tasks[each.task] = make_task(each.task, None)
            begin = time.monotonic()
            rate, seed = rest[0]
            loss = _loss(tasks[each.task], method, rate, seed)
            losses.setdefault(rate, []).append(loss)
            table.write(known)
            shown = "diverged" if loss is None else f"loss {loss:.4f}"
            took = time.monotonic() - begin
            what = f"{each.task}: {each.call}, rate {rate:g}, seed {seed}"
            print(f"{what}: {shown}, {took:.0f} s", flush=True)


def _loss(task: Any, method: Method, learning_rate: float, seed: int) -> float | None:
    curve = run(
        task,
        method,
        learning_rate,
        ranks=SETTINGS["ranks"],
        seed=seed,
        steps=SETTINGS["steps"],
        evaluations=1,
    )
    return None if curve.diverged else round(curve.points[-1]["loss"], 5)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benches.accuracy.rates",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--task", choices=[*TASKS, "both"], default="both", help="measure on one task only"
    )
    parser.add_argument(
        "--minutes", type=float, default=math.inf, help="begin no run after so many minutes"
    )
    parser.add_argument(
        "--out", type=Path, default=rates.FILE, metavar="FILE", help="default: the package's"
    )
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    gradwire.set_num_threads(1)
    only = list(TASKS) if chosen.task == "both" else [chosen.task]
    try:
        measure(chosen.out, only, time.time() + 60 * chosen.minutes)
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from here", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
