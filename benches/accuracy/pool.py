"""Worker processes of a thread each that make runs, the most telling ones first."""

import contextlib
import importlib
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from dataclasses import asdict
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from benches.harness.results import Record

if TYPE_CHECKING:
    from .plan import Run
    from .store import Planned

Target = Callable[[Connection, Path | None], None]

_tasks: dict[str, Any] = {}
"""The tasks that this process has made so far, by name."""


class WorkerError(Exception):
    """A run failed; the message is meant for the user."""


class Pool:
    """A few processes that train. Leaving the context ends them and what they were at.

    ``data`` is the folder of data that is not downloaded, ``target`` what a process does.
    """

    def __init__(self, jobs: int, data: Path | None = None, target: Target | None = None) -> None:
        # Set before the workers import numpy and torch, which read it once.
        os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")
        context = multiprocessing.get_context("spawn")
        self._processes = []
        self._idle: list[Connection] = []
        self._busy: dict[Connection, Any] = {}
        for _ in range(jobs):
            here, there = context.Pipe()
            process = context.Process(target=target or serve, args=(there, data), daemon=True)
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

    def make(self, work: "Planned", tell: Callable[["Run", Record], None]) -> None:
        """Make every run that is missing, and tell of it once it is kept.

        Raises `WorkerError` if a run fails or a process dies.
        """
        while True:
            for run in work.missing():
                if self._idle and run not in self._busy.values():
                    pipe = self._idle.pop()
                    pipe.send(work.order(run))
                    self._busy[pipe] = run
            if not self._busy:
                return
            ready = wait(list(self._busy))
            for pipe in [each for each in self._busy if each in ready]:
                run = self._busy.pop(pipe)
                record = work.keep(run, _answer(pipe, run))
                self._idle.append(pipe)
                tell(run, record)


def _answer(pipe: Connection, run: object) -> dict[str, Any]:
    try:
        answer: dict[str, Any] | Exception = pipe.recv()
    except EOFError:
        raise WorkerError(f"the process of {run} died, perhaps for want of memory") from None
    if isinstance(answer, Exception):
        raise WorkerError(f"{run}: {type(answer).__name__}: {answer}") from answer
    return answer


def serve(pipe: Connection, data: Path | None) -> None:
    """Train what is ordered, until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent says when to stop
    with contextlib.suppress(EOFError, BrokenPipeError):  # the parent has ended
        while True:
            task, method, learning_rate, options = pipe.recv()
            try:
                if task not in _tasks:
                    _tasks[task] = make_task(task, data)
                answer: object = train(_tasks[task], method, learning_rate, **options)
            except Exception as error:  # for the parent, which reports it
                answer = error
            pipe.send(answer)


def train(task: Any, method: Any, learning_rate: float, **options: Any) -> dict[str, Any]:
    """Return what a run gave, its seconds on the processor, and facts of the task."""
    import torch

    import gradwire

    from .run import run

    torch.set_num_threads(1)
    gradwire.set_num_threads(1)
    start = time.process_time()
    curve = run(task, method, learning_rate, **options)
    seconds = round(time.process_time() - start, 2)
    return {**asdict(curve), "seconds": seconds, "facts": task.facts()}


def make_task(name: str, data: Path | None) -> Any:
    """Return a task; each imports only what it needs."""
    module = importlib.import_module(f"benches.accuracy.tasks.{name}")
    return module.Fashion(data) if name == "fashion" else getattr(module, name.capitalize())()
