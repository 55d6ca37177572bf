"""Train with every method in turn, in processes that serve all runs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Protocol

from gradwire.cli.compare.results import BASELINES, Comparison, Entry
from gradwire.cli.training.link import Loopback
from gradwire.cli.training.machine import machine, threads_per_rank, versions
from gradwire.cli.training.processes import Ranks
from gradwire.presets import PRESETS

__all__ = ["STEPS", "Plan", "run"]

STEPS = {"digits": 300, "text": 300}
"""Training steps per task, enough for delayed gradients to arrive."""


@dataclass(frozen=True)
class Plan:
    """The runs to make."""

    tasks: Sequence[str]
    presets: Sequence[str]
    steps: int | None
    ranks: int
    seeds: int = 1
    learning_rate: float | None = None  # None: the one measured for the method


class Progress(Protocol):
    """Receives the progress of the runner."""

    def note(self, text: str) -> None:
        """Print a permanent line."""

    def begin(self, label: str, steps: int) -> None:
        """Begin a run."""

    def advance(self, step: int, loss: float, share: float, left: float) -> None:
        """Report a step of the current run, the completed share of all runs, and seconds left."""

    def end(self, summary: str) -> None:
        """End the current run."""


def run(plan: Plan, progress: Progress) -> Comparison:
    """Run the whole plan and return what was measured.

    Raises
    ------
    RankError
        If a rank fails or stops responding. All processes have ended by then.
    """
    with Ranks(Loopback(), plan.ranks) as ranks:
        return _Session(plan, ranks, progress).run()


class _Session:
    def __init__(self, plan: Plan, ranks: Ranks, progress: Progress) -> None:
        self._plan, self._ranks, self._progress = plan, ranks, progress
        self._tasks: dict[str, dict[str, Any]] = {}
        self._done, self._of = 0, len(plan.tasks) * self._runs_of_a_task()
        self._began = time.monotonic()

    def _runs_of_a_task(self) -> int:
        return self._plan.seeds * (len(BASELINES) + len(self._plan.presets))

    def run(self) -> Comparison:
        found = versions()
        for _, event in self._ranks.events("ready"):
            found |= event["versions"]
        self._began = time.monotonic()
        entries = list(self._entries())
        ranks = self._plan.ranks
        return Comparison(
            settings={
                "ranks": ranks,
                "threads_per_rank": threads_per_rank(ranks),
                "seeds": self._plan.seeds,
                "learning_rate": self._plan.learning_rate,
            },
            machine=machine(),
            versions=found,
            tasks=self._tasks,
            entries=entries,
        )

    def _entries(self) -> Iterator[Entry]:
        for task in self._plan.tasks:
            steps = self._plan.steps or STEPS[task]
            for method in (*BASELINES, *self._plan.presets):
                for seed in range(self._plan.seeds):
                    yield self._entry(task, method, steps, seed)
                    self._done += 1

    def _entry(self, task: str, method: str, steps: int, seed: int) -> Entry:
        codec = None
        if method not in BASELINES:
            preset = PRESETS[method]
            codec = preset.build(**preset.example)
        which = f", seed {seed}" if self._plan.seeds > 1 else ""
        self._progress.begin(f"{task}: {method}{which}", steps)
        config = None if codec is None else codec.get_config()
        record = self._train(task, method, steps, config, seed)
        self._tasks.setdefault(task, {"parameters": record["parameters"], **record["facts"]})
        detail, end = record["detail"], record["curve"][-1]
        entry = Entry(
            task=task,
            method=method,
            call="" if codec is None else repr(codec),
            feedback=codec is not None and codec.memory.keeps,
            seed=seed,
            steps=steps,
            bytes_per_step=record["bytes_per_step"],
            dense_bytes_per_step=record["dense_bytes_per_step"],
            encode_ms=detail.get("encode_ms"),
            decode_ms=detail.get("decode_ms"),
            step_ms=1e3 * median(record["step_seconds"]),
            loss=end["loss"],
            accuracy=end["accuracy"],
            replicas_identical=record["replicas_identical"],
            optimizer=record["optimizer"],
            learning_rate=record["learning_rate"],
            rate_source=record["rate_source"],
        )
        self._progress.end(
            f"{entry.ratio:.1f}x fewer bytes, accuracy {100 * entry.accuracy:.1f} %, "
            f"{entry.step_ms:.0f} ms per step"
        )
        return entry

    def _train(
        self, task: str, method: str, steps: int, codec: dict[str, Any] | None, seed: int
    ) -> dict[str, Any]:
        """Train once on all ranks, and return rank 0's record."""
        what: dict[str, Any] = {"task": task, "method": method, "codec": codec, "seed": seed}
        what["learning_rate"] = self._plan.learning_rate
        self._ranks.send(do="train", **what, steps=steps, evaluate=True)
        record: dict[str, Any] = {}
        for rank, event in self._ranks.events("trained"):
            if event["event"] == "step":
                share = (self._done + event["step"] / steps) / self._of
                left = (time.monotonic() - self._began) * (1 / share - 1)
                self._progress.advance(event["step"], event["loss"], share, left)
            elif event["event"] == "trained" and rank == 0:
                record = event["record"]
        return record
