"""Train with every method in turn, in processes that serve all runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from benches.harness.link import Loopback
from benches.harness.machine import machine, threads_per_rank
from benches.harness.processes import Ranks
from benches.harness.progress import Reporter
from benches.harness.rates import rate_for
from benches.presets.results import BASELINES, Results, Run
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


def run(
    plan: Plan,
    progress: Reporter,
    earlier: Results | None = None,
    keep: Callable[[Results], object] | None = None,
) -> Results:
    """Run the whole plan and return what was measured.

    Parameters
    ----------
    plan : Plan
    progress : Reporter
    earlier : Results, optional
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
class _Training:
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

    def made_by(self, run: Run) -> bool:
        """Tell whether a run is the outcome of this."""
        mine = (self.task, self.method, self.call, self.steps, self.seed)
        if mine != (run.task, run.method, run.call, run.steps, run.seed):
            return False
        rate = self.learning_rate
        if rate is None:
            rate = rate_for(self.task, self.method, self.codec, run.optimizer).value
        return rate == run.learning_rate


class _Session:
    def __init__(
        self,
        plan: Plan,
        ranks: Ranks,
        progress: Reporter,
        earlier: Results | None,
        keep: Callable[[Results], object] | None,
    ) -> None:
        self._plan, self._ranks, self._progress = plan, ranks, progress
        self._earlier, self._keep = earlier, keep
        self._done, self._of = 0, 1
        self._began = time.monotonic()

    def run(self) -> Results:
        found = self._ranks.versions()
        self._began = time.monotonic()
        made = Results(
            settings={
                "ranks": self._plan.ranks,
                "threads_per_rank": threads_per_rank(self._plan.ranks),
                "seeds": self._plan.seeds,
                "learning_rate": self._plan.learning_rate,
            },
            machine=machine(),
            versions=found,
            tasks={},
            runs=[],
        )
        if self._earlier is not None:
            self._earlier.check_conditions(made)
            made = self._earlier
        missing = [each for each in self._runs() if not any(map(each.made_by, made.runs))]
        self._of = max(1, len(missing))
        for each in missing:
            made = self._made(made, each)
            self._done += 1
            if self._keep is not None:
                self._keep(made)
        return made

    def _runs(self) -> Iterator[_Training]:
        for task in self._plan.tasks:
            steps = self._plan.steps or STEPS[task]
            for method in (*BASELINES, *self._plan.presets):
                codec = None
                if method not in BASELINES:
                    preset = PRESETS[method]
                    codec = preset.build(**preset.example)
                for seed in range(self._plan.seeds):
                    yield _Training(task, method, codec, steps, seed, self._plan.learning_rate)

    def _made(self, before: Results, what: _Training) -> Results:
        """Make a run, and add it to a comparison."""
        task, method, codec = what.task, what.method, what.codec
        steps, seed = what.steps, what.seed
        which = f", seed {seed}" if self._plan.seeds > 1 else ""
        self._progress.begin(f"{task}: {method}{which}", steps)
        config = None if codec is None else codec.get_config()
        record = self._train(task, method, steps, config, seed)
        facts = {"parameters": record["parameters"], **record["facts"]}
        detail, end = record["detail"], record["curve"][-1]
        run = Run(
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
            f"{run.ratio:.1f}x fewer bytes, accuracy {100 * run.accuracy:.1f} %, "
            f"{run.step_ms:.0f} ms per step"
        )
        return before.with_run(run, facts)

    def _train(
        self, task: str, method: str, steps: int, codec: dict[str, Any] | None, seed: int
    ) -> dict[str, Any]:
        def advance(step: int, loss: float) -> None:
            share = (self._done + step / steps) / self._of
            left = (time.monotonic() - self._began) * (1 / share - 1)
            self._progress.advance(step, loss, share, left)

        return self._ranks.train(
            advance,
            task=task,
            method=method,
            codec=codec,
            steps=steps,
            evaluate=True,
            seed=seed,
            learning_rate=self._plan.learning_rate,
        )
