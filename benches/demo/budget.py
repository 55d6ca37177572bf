"""Predict how long the demo takes, and fit the number of steps to the time allowed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benches.demo.results import HALVES, PLAIN

SECONDS = 260.0  # for all runs, so that the demo ends within five minutes, start-up included
MIN_STEPS = 60  # with fewer steps the models learn too little to compare
_FIXED = 1.5  # seconds per run for set-up and evaluation


@dataclass(frozen=True)
class Kind:
    """Estimates for a task, replaced by measurements as they become available."""

    title: str
    steps: int
    parameters: int
    compute_seconds: float


KINDS = {
    "digits": Kind("convolutional network, handwritten digits", 150, 480_000, 0.012),
    "text": Kind("character transformer, Python's own sources", 200, 430_000, 0.030),
}


@dataclass(frozen=True)
class Job:
    """One pending run."""

    task: str
    method: str
    rate: int | None


class Budget:
    """The pending runs, their predicted duration, and their numbers of steps.

    Parameters
    ----------
    jobs
        All runs in order; runs of the same task and link are adjacent.
    steps : int or None
        Steps per run. None uses the task's default, or fewer if the machine would otherwise exceed
        `SECONDS`. All methods on one task and link get the same number.
    ratio : float
        Share of entries that the sparse methods send, to predict their bytes.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        steps: int | None,
        ratio: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.todo = list(jobs)
        self.compute = {name: kind.compute_seconds for name, kind in KINDS.items()}
        self._asked, self._ratio, self._clock = steps, ratio, clock
        self._settled: dict[tuple[str, int | None], int] = {}
        self._begin = self._run_begin = clock()
        self._training_begin: float | None = None
        self._predicted = self._taken = 0.0

    def steps(self, job: Job) -> int:
        key = (job.task, job.rate)
        if key not in self._settled:
            usual = KINDS[job.task].steps
            left = SECONDS - (self._clock() - self._begin)
            share = min(1.0, max(left, 0.0) / max(self._left(), 1e-9))
            fitting = max(MIN_STEPS, 10 * round(usual * share / 10))
            self._settled[key] = self._asked or min(usual, fitting)
        return self._settled[key]

    def begin(self, job: Job) -> None:
        self.todo.remove(job)
        self._run_begin = self._clock()
        if self._training_begin is None:
            self._training_begin = self._run_begin

    def end(self, job: Job) -> None:
        self._predicted += self._predict(job)
        self._taken += self._clock() - self._run_begin

    def so_far(self, step: int, steps: int) -> tuple[float, float]:
        """Return the completed share of all runs and the seconds left, at a step of a run."""
        now = self._clock()
        left = (now - self._run_begin) * (steps - step) / step + self._left()
        done = now - (self._begin if self._training_begin is None else self._training_begin)
        return done / max(done + left, 1e-9), left

    def _left(self) -> float:
        """Return the predicted seconds of all pending runs, corrected by past runs."""
        pace = self._taken / self._predicted if self._predicted else 1.0
        return pace * sum(self._predict(job) for job in self.todo)

    def _predict(self, job: Job) -> float:
        kind = KINDS[job.task]
        steps = self._settled.get((job.task, job.rate), self._asked or kind.steps)
        share = {PLAIN: 1.0, **dict.fromkeys(HALVES, 0.5)}.get(job.method, 1.5 * self._ratio)
        transfer = 8 * 4 * kind.parameters * share / job.rate if job.rate else 0.0
        return steps * (self.compute[job.task] + transfer + 0.003) + _FIXED
