"""A pool that pretends to train and to evaluate."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from benches.harness.results import Record
from benches.weights import models
from benches.weights.plan import FLOAT, Run, Setting
from benches.weights.work import Planned

Row = Callable[[Any], dict[str, Any]]


def row(setting: Setting) -> dict[str, Any]:
    """Return a loss that doubles its distance with every bit less."""
    more = 0.0 if setting == FLOAT else 0.16 / 2**setting.bits
    return {
        "loss": 1.5 + more,
        "accuracy": 0.6,
        "parameters": 1000,
        "entries": 800,
        "packed_bytes": 100 * setting.bits,
        "bytes": 100 * setting.bits + 800,
    }


class Pool:
    """Make everything at once, in this process; the weights of a model are an empty file."""

    row = staticmethod(row)

    def __init__(self, *_: object) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def make(self, work: Planned, tell: Callable[[Run, Record], None]) -> None:
        while missing := work.missing():
            found = answer(*work.order(missing[0]), self.row)
            tell(missing[0], work.keep(missing[0], found))


def answer(run: Run, folder: Path, row: Row = row) -> dict[str, Any]:
    """Train, or return what `row` has."""
    if run.setting is None:
        folder.mkdir(exist_ok=True)
        models.place(run.model, folder).touch()
        return {"facts": {}}
    return row(run.setting)
