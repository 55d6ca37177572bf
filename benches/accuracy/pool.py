"""Worker processes of a thread each that make runs, the most telling ones first."""

import functools
import importlib
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benches.harness.results import Record

if TYPE_CHECKING:
    from .plan import Run
    from .store import Planned


class WorkerError(Exception):
    """A run failed; the message is meant for the user."""


def make(
    work: "Planned", jobs: int, data: Path | None, tell: Callable[["Run", Record], object]
) -> None:
    """Make every run that is missing, so many at a time, and tell of it once it is kept.

    ``data`` is the folder of data that is not downloaded. Raises `WorkerError` if a run fails or a
    process dies. In any case all processes end, and what they were at.
    """
    # Set before the processes import numpy and torch, which read it once.
    os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")
    before, context = multiprocessing.active_children(), multiprocessing.get_context("spawn")
    ignored = signal.SIGINT, signal.SIG_IGN  # the parent says when to stop
    pool = ProcessPoolExecutor(jobs, context, signal.signal, ignored)
    busy: dict[Future[dict[str, Any]], Run] = {}
    try:
        while True:
            for run in work.missing():
                if len(busy) < jobs and run not in busy.values():
                    busy[pool.submit(train, data, *work.order(run))] = run
            if not busy:
                return
            for future in wait(busy, return_when=FIRST_COMPLETED).done:
                run = busy.pop(future)
                tell(run, work.keep(run, _outcome(future, run)))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in multiprocessing.active_children():
            if process not in before:
                process.terminate()
                process.join()


def _outcome(future: Future[dict[str, Any]], run: object) -> dict[str, Any]:
    try:
        return future.result()
    except BrokenProcessPool:
        raise WorkerError(f"a process died, perhaps that of {run}, for want of memory") from None
    except Exception as error:
        raise WorkerError(f"{run}: {type(error).__name__}: {error}") from error


def train(
    data: Path | None, task: str, method: Any, learning_rate: float, options: dict[str, Any]
) -> dict[str, Any]:
    """Return what a run gave, its seconds on the processor, and facts of the task."""
    import torch

    import gradwire

    from .run import run

    torch.set_num_threads(1)
    gradwire.set_num_threads(1)
    made = make_task(task, data)
    start = time.process_time()
    curve = run(made, method, learning_rate, **options)
    seconds = round(time.process_time() - start, 2)
    return {**asdict(curve), "seconds": seconds, "facts": made.facts()}


@functools.cache
def make_task(name: str, data: Path | None) -> Any:
    """Return a task, which a process makes once; each imports only what it needs."""
    where = "text" if name in ("code", "headers") else name
    module = importlib.import_module(f"benches.accuracy.tasks.{where}")
    return module.Fashion(data) if name == "fashion" else getattr(module, name.capitalize())()
