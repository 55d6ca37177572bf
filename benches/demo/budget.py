"""Predict how long the demo takes, and fit the number of steps to the time allowed."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benches.demo.results import HALVES, PLAIN

SECONDS = 260.0  # for all runs, so that the demo ends within five minutes, start-up included
MIN_STEPS = 60  # with fewer steps the models learn too little to compare
_FIXED = 1.5  # seconds per run for set-up and evaluation


@dataclass(frozen=True)
class Kind:
    """Estimates for a task; that of computing is replaced by what was measured."""

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
    """One run."""

    task: str
    method: str
    rate: int | None


class Budget:
    """The pending runs, about how long they take, and their numbers of steps.

    Without ``steps``, a run has the task's default, or fewer if the machine would otherwise exceed
    `SECONDS`; all methods on one task and link get the same number.
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

    def begin(self, job: Job) -> int:
        """Return the steps of a run that begins, fixed by the first run of its task and link."""
        key = (job.task, job.rate)
        if key not in self._settled:
            usual = KINDS[job.task].steps
            left = SECONDS - (self._clock() - self._begin)
            share = min(1.0, max(left, 0.0) / max(self._left(), 1e-9))
            fitting = max(MIN_STEPS, 10 * round(usual * share / 10))
            self._settled[key] = self._asked or min(usual, fitting)
        self.todo.remove(job)
        self._run_begin = self._clock()
        return self._settled[key]

    def so_far(self, step: int, steps: int) -> tuple[float, float]:
        """Return the completed share of all runs and the seconds left, at a step of a run."""
        now = self._clock()
        left = (now - self._run_begin) * (steps - step) / step + self._left()
        return (now - self._begin) / max(now - self._begin + left, 1e-9), left

    def _left(self) -> float:
        return sum(map(self._predict, self.todo))

    def _predict(self, job: Job) -> float:
        kind = KINDS[job.task]
        steps = self._settled.get((job.task, job.rate), self._asked or kind.steps)
        share = {PLAIN: 1.0, **dict.fromkeys(HALVES, 0.5)}.get(job.method, 1.5 * self._ratio)
        transfer = 8 * 4 * kind.parameters * share / job.rate if job.rate else 0.0
        return steps * (self.compute[job.task] + transfer + 0.003) + _FIXED
