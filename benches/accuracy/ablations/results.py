"""The finished runs, and what they show."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import mean
from typing import Any

from benches.accuracy.store import Lines, Record, same, versions
from benches.compare.blocks import ROOT

from .methods import METHODS
from .plan import Run

RESULTS = ROOT / "benches" / "results" / "ablations.jsonl"
EDITION = 1
"""Raise it when a task or the arithmetic of a variant changes: all runs are then made again."""


def key(run: Run) -> dict[str, Any]:
    """Return everything that determines a run, as plain data."""
    return {"edition": EDITION, **asdict(run), "config": METHODS[run.method].config()}


class Results(Lines):
    """A file of finished runs.

    Unlike those of `make accuracy`, they stay when versions change, which each record names: a
    variant is compared with others of the same file, not with a measure from outside.
    """

    def made(self) -> dict[Run, Record]:
        """Return the runs whose methods are still the same."""
        found = {}
        for record in self.records:
            saved = record["key"]
            if saved["method"] in METHODS:
                run = Run(**{name: saved[name] for name in Run.__dataclass_fields__})
                if same(saved, key(run)):
                    found[run] = record
        return found


@dataclass
class Asked:
    """The runs of some questions that the file lacks, for a pool."""

    runs: Sequence[Run]
    kept: Results

    def missing(self) -> list[Run]:
        """Return what is not there, in the order of the plan."""
        made = self.kept.made()
        return [run for run in self.runs if run not in made]

    def order(self, run: Run) -> Run:
        """Return what a process has to know of a run."""
        return run

    def keep(self, run: Run, outcome: dict[str, Any]) -> Record:
        """Keep what a process has answered."""
        record = {"key": key(run), **outcome, "versions": dict(versions())}
        self.kept.add(record)
        return record


@dataclass(frozen=True)
class Mean:
    """The mean over the seeds of a method at one learning rate.

    Attributes
    ----------
    loss, accuracy : float
        On held-out data after the last step; accuracy between 0 and 1.
    """

    rate: float
    seeds: int
    loss: float
    accuracy: float
    bytes_per_step: float


def means(
    made: Mapping[Run, Record], method: str, *, task: str, ranks: int, steps: int
) -> list[Mean]:
    """Return a method's means in the order of the learning rate, without those that diverged."""
    rates: dict[float, list[Record]] = {}
    for run, record in made.items():
        if (run.method, run.task, run.ranks, run.steps) == (method, task, ranks, steps):
            rates.setdefault(run.rate, []).append(record)
    found = []
    for rate, group in sorted(rates.items()):
        if any(each["diverged"] for each in group):
            continue
        ends = [each["points"][-1] for each in group]
        found.append(
            Mean(
                rate,
                len(group),
                mean(each["loss"] for each in ends),
                mean(each.get("accuracy", math.nan) for each in ends),
                mean(each["bytes_per_step"] for each in group),
            )
        )
    return found
