"""Worker processes that make the runs of a plan, the most telling ones first."""

import multiprocessing
import os
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from . import store
from .plan import Plan, Run
from .store import Record, Store
from .worker import serve

Told = Callable[[Run, Record], None]
Target = Callable[[Connection, Path | None], None]


class WorkerError(Exception):
    """A run failed; the message is meant for the user."""


class Pool:
    """A few processes with a thread each. Leaving the context ends them and what they were at.

    Parameters
    ----------
    jobs : int
        Number of processes.
    data : Path, optional
        Folder of data that is not downloaded.
    target : callable
        What a process does.
    """

    def __init__(self, jobs: int, data: Path | None = None, target: Target = serve) -> None:
        # Set before the workers import numpy and torch, which read it once.
        os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")
        context = multiprocessing.get_context("spawn")
        self._processes = []
        self._idle: list[Connection] = []
        self._busy: dict[Connection, Run] = {}
        for _ in range(jobs):
            here, there = context.Pipe()
            process = context.Process(target=target, args=(there, data), daemon=True)
            process.start()
            there.close()
            self._processes.append(process)
            self._idle.append(here)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.join()

    def make(self, plan: Plan, kept: Store, tell: Told) -> None:
        """Make every run of a plan that is not in the store yet, and add it.

        Raises
        ------
        WorkerError
            If a run fails or a process dies.
        """
        while True:
            scores = store.scores(kept.of(plan))
            for run in plan.missing(scores):
                if self._idle and run not in self._busy.values():
                    pipe = self._idle.pop()
                    pipe.send((run, plan.steps(run.section)))
                    self._busy[pipe] = run
            if not self._busy:
                return
            ready = wait(list(self._busy))
            for pipe in [each for each in self._busy if each in ready]:
                run = self._busy.pop(pipe)
                record = {"key": store.key(run, plan.steps(run.section)), **_answer(pipe, run)}
                kept.add(record)
                self._idle.append(pipe)
                tell(run, record)


def _answer(pipe: Connection, run: Run) -> dict[str, Any]:
    try:
        answer: dict[str, Any] | Exception = pipe.recv()
    except EOFError:
        raise WorkerError(f"the process of {run} died, perhaps for want of memory") from None
    if isinstance(answer, Exception):
        raise WorkerError(f"{run}: {type(answer).__name__}: {answer}") from answer
    return answer
