"""A process that makes ablations, one after the other."""

from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benches.accuracy import worker

from .methods import METHODS
from .plan import Run
from .variant import Variant


def serve(pipe: Connection, data: Path | None) -> None:
    """Receive runs and send their outcomes, until the pipe is closed."""
    worker.serve_with(trained, pipe, data)


def trained(run: Run, data: Path | None, tasks: worker.Tasks) -> dict[str, Any]:
    """Make a run."""
    method = METHODS[run.method]
    return worker.train(
        worker.made_task(run.task, data, tasks),
        method,
        run.rate,
        ranks=run.ranks,
        seed=run.seed,
        steps=run.steps,
        evaluations=6 if run.task == "control" else 1,  # the whole run counts
        dense=method.dense if isinstance(method, Variant) else (),
    )
