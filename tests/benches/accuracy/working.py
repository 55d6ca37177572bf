"""Worker processes that pretend to train."""

from multiprocessing.connection import Connection
from pathlib import Path

from benches.accuracy.plan import SECTIONS, nearest


def pretend(pipe: Connection, data: Path | None) -> None:
    """Answer at once; the best rate is the fifth of the grid."""
    while True:
        try:
            task, method, rate, options = pipe.recv()
        except EOFError:
            return
        place = nearest(SECTIONS[task].grid, rate)
        value = 0.8 - 0.01 * abs(place - 4) + 0.001 * options["seed"]
        point = {"step": options["steps"], "loss": 1 - value, "accuracy": value, "auc": value,
                 "explained": value, "return": value}  # fmt: skip
        pipe.send(
            {
                "points": [point],
                "bytes_per_step": 1e6 if method.codec is None else 1e4,
                "diverged": False,
                "seconds": 0.1,
                "facts": {},
            }
        )


def fail(pipe: Connection, data: Path | None) -> None:
    """Answer with an error."""
    pipe.recv()
    pipe.send(ValueError("no luck"))


def die(pipe: Connection, data: Path | None) -> None:
    """End without an answer."""
    pipe.recv()
