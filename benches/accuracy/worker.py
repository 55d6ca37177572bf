"""A process that trains what it is told to, one run after the other, on one thread."""

import contextlib
import signal
import time
from collections.abc import Callable
from dataclasses import asdict
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from .plan import SECTIONS

Tasks = dict[str, Any]
"""The tasks that a process has made so far, by name."""

Trained = Callable[[Any, Path | None, Tasks], dict[str, Any]]


def serve_with(trained: Trained, pipe: Connection, data: Path | None) -> None:
    """Receive orders and send their outcomes, until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent says when to stop
    tasks: Tasks = {}
    with contextlib.suppress(EOFError, BrokenPipeError):  # the parent has ended
        while True:
            order = pipe.recv()
            try:
                answer: object = trained(order, data, tasks)
            except Exception as error:  # for the parent, which reports it
                answer = error
            pipe.send(answer)


def serve(pipe: Connection, data: Path | None) -> None:
    """Make the runs of a plan."""
    serve_with(_trained, pipe, data)


def _trained(order: Any, data: Path | None, tasks: Tasks) -> dict[str, Any]:
    from .methods import METHODS

    run, steps = order
    return train(
        made_task(SECTIONS[run.section].task, data, tasks),
        METHODS[run.method],
        run.learning_rate,
        ranks=run.ranks,
        seed=run.seed,
        steps=steps,
    )


def train(task: Any, method: Any, learning_rate: float, **options: Any) -> dict[str, Any]:
    """Train on one thread, and return what is kept of the run."""
    import torch

    import gradwire

    from .run import run

    torch.set_num_threads(1)
    gradwire.set_num_threads(1)
    start = time.process_time()
    curve = run(task, method, learning_rate, **options)
    return {
        **asdict(curve),
        "seconds": round(time.process_time() - start, 2),
        "facts": task.facts(),
    }


def made_task(name: str, data: Path | None, tasks: Tasks) -> Any:
    """Return a task, made once in a process."""
    if name not in tasks:
        tasks[name] = make_task(name, data)
    return tasks[name]


def make_task(name: str, data: Path | None) -> Any:
    """Return a task; each imports only what it needs."""
    if name in ("text", "text32"):
        from .tasks.text import GLOBAL_BATCH, Text

        return Text(32 if name == "text32" else GLOBAL_BATCH)
    if name == "clicks":
        from .tasks.clicks import Clicks

        return Clicks()
    if name == "noise":
        from .tasks.noise import Noise

        return Noise()
    if name == "control":
        from .tasks.control import Control

        return Control()
    if name == "digits":
        from .tasks.digits import Digits

        return Digits()
    from torch.nn import Identity

    from .tasks.fashion import Fashion

    return Fashion(data, Identity) if name == "fashion without norm" else Fashion(data)
