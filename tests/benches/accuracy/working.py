"""Worker processes that pretend to train."""

from multiprocessing.connection import Connection
from pathlib import Path

from benches.accuracy.plan import SECTIONS, nearest


def pretend(pipe: Connection, data: Path | None) -> None:
    """Answer at once; the best rate is the fifth of the grid."""
    while True:
        try:
            run, steps = pipe.recv()
        except EOFError:
            return
        place = nearest(SECTIONS[run.section].grid, run.learning_rate)
        value = 0.8 - 0.01 * abs(place - 4) + 0.001 * run.seed
        point = {"step": steps, "loss": 1 - value, "accuracy": value, "auc": value,
                 "explained": value, "return": value}  # fmt: skip
        pipe.send(
            {
                "points": [point],
                "bytes_per_step": 1e6 if run.method.startswith("dense") else 1e4,
                "diverged": False,
                "seconds": 0.1,
                "facts": {},
            }
        )


def ablate(pipe: Connection, data: Path | None) -> None:
    """Answer at once to ablations."""
    while True:
        try:
            run = pipe.recv()
        except EOFError:
            return
        point = {"step": run.steps, "loss": 1 + run.rate, "accuracy": 0.5}
        pipe.send({"points": [point], "bytes_per_step": 1e4, "diverged": False, "seconds": 0.1})


def fail(pipe: Connection, data: Path | None) -> None:
    """Answer with an error."""
    pipe.recv()
    pipe.send(ValueError("no luck"))


def die(pipe: Connection, data: Path | None) -> None:
    """End without an answer."""
    pipe.recv()
