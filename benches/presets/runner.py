"""Train with every method in turn, in processes that serve all runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Protocol

from benches.harness.link import Loopback
from benches.harness.machine import machine, threads_per_rank, versions
from benches.harness.processes import Ranks
from benches.harness.rates import rate_for
from benches.presets.results import BASELINES, Comparison, Entry
from gradwire.codec import Codec
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


def run(
    plan: Plan,
    progress: Progress,
    earlier: Comparison | None = None,
    keep: Callable[[Comparison], object] | None = None,
) -> Comparison:
    """Run the whole plan and return what was measured.

    Parameters
    ----------
    plan : Plan
    progress : Progress
    earlier : Comparison, optional
        To be added to: runs of the plan that it has are not made again, and all others are kept.
    keep : callable, optional
        Called with the comparison so far after every run.

    Raises
    ------
    RankError
        If a rank fails or stops responding. All processes have ended by then.
    OtherConditionsError
        The earlier runs were made on another machine, with other versions or settings.
    """
    with Ranks(Loopback(), plan.ranks) as ranks:
        return _Session(plan, ranks, progress, earlier, keep).run()


@dataclass(frozen=True)
class _Run:
    """One run of the plan."""

    task: str
    method: str
    codec: Codec | None
    steps: int
    seed: int
    learning_rate: float | None

    @property
    def call(self) -> str:
        return "" if self.codec is None else repr(self.codec)

    def made_by(self, entry: Entry) -> bool:
        """Tell whether an entry is the outcome of this run."""
        mine = (self.task, self.method, self.call, self.steps, self.seed)
        if mine != (entry.task, entry.method, entry.call, entry.steps, entry.seed):
            return False
        rate = self.learning_rate
        if rate is None:
            rate = rate_for(self.task, self.method, self.codec, entry.optimizer).value
        return rate == entry.learning_rate


class _Session:
    def __init__(
        self,
        plan: Plan,
        ranks: Ranks,
        progress: Progress,
        earlier: Comparison | None,
        keep: Callable[[Comparison], object] | None,
    ) -> None:
        self._plan, self._ranks, self._progress = plan, ranks, progress
        self._earlier, self._keep = earlier, keep
        self._done, self._of = 0, 1
        self._began = time.monotonic()

    def run(self) -> Comparison:
        found = versions()
        for _, event in self._ranks.events("ready"):
            found |= event["versions"]
        self._began = time.monotonic()
        made = Comparison(
            settings={
                "ranks": self._plan.ranks,
                "threads_per_rank": threads_per_rank(self._plan.ranks),
                "seeds": self._plan.seeds,
                "learning_rate": self._plan.learning_rate,
            },
            machine=machine(),
            versions=found,
            tasks={},
            entries=[],
        )
        if self._earlier is not None:
            self._earlier.check_conditions(made)
            made = self._earlier
        missing = [each for each in self._runs() if not any(map(each.made_by, made.entries))]
        self._of = max(1, len(missing))
        for each in missing:
            made = self._made(made, each)
            self._done += 1
            if self._keep is not None:
                self._keep(made)
        return made

    def _runs(self) -> Iterator[_Run]:
        for task in self._plan.tasks:
            steps = self._plan.steps or STEPS[task]
            for method in (*BASELINES, *self._plan.presets):
                codec = None
                if method not in BASELINES:
                    preset = PRESETS[method]
                    codec = preset.build(**preset.example)
                for seed in range(self._plan.seeds):
                    yield _Run(task, method, codec, steps, seed, self._plan.learning_rate)

    def _made(self, before: Comparison, what: _Run) -> Comparison:
        """Make a run, and add it to a comparison."""
        task, method, codec = what.task, what.method, what.codec
        steps, seed = what.steps, what.seed
        which = f", seed {seed}" if self._plan.seeds > 1 else ""
        self._progress.begin(f"{task}: {method}{which}", steps)
        config = None if codec is None else codec.get_config()
        record = self._train(task, method, steps, config, seed)
        facts = {"parameters": record["parameters"], **record["facts"]}
        detail, end = record["detail"], record["curve"][-1]
        entry = Entry(
            task=task,
            method=method,
            call=what.call,
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
        return before.with_entry(entry, facts)

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
