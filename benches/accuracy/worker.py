"""A process that trains what it is told to, one run after the other, on one thread."""

import contextlib
import signal
import time
from dataclasses import asdict
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from .plan import SECTIONS, Run


def serve(pipe: Connection, data: Path | None) -> None:
    """Receive runs and send their outcomes, until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent says when to stop
    tasks: dict[str, Any] = {}
    with contextlib.suppress(EOFError, BrokenPipeError):  # the parent has ended
        while True:
            run, steps = pipe.recv()
            try:
                answer: object = _train(run, steps, data, tasks)
            except Exception as error:  # for the parent, which reports it
                answer = error
            pipe.send(answer)


def _train(run: Run, steps: int, data: Path | None, tasks: dict[str, Any]) -> dict[str, Any]:
    import torch

    import gradwire

    from .methods import METHODS
    from .run import run as train

    torch.set_num_threads(1)
    gradwire.set_num_threads(1)
    name = SECTIONS[run.section].task
    if name not in tasks:
        tasks[name] = make_task(name, data)
    start = time.process_time()
    curve = train(
        tasks[name],
        METHODS[run.method],
        run.learning_rate,
        ranks=run.ranks,
        seed=run.seed,
        steps=steps,
    )
    return {
        **asdict(curve),
        "seconds": round(time.process_time() - start, 2),
        "facts": tasks[name].facts(),
    }


def make_task(name: str, data: Path | None) -> Any:
    """Return a task; each imports only what it needs."""
    if name == "text":
        from .tasks.text import Text

        return Text()
    if name == "clicks":
        from .tasks.clicks import Clicks

        return Clicks()
    from .tasks.fashion import Fashion

    return Fashion(data)
