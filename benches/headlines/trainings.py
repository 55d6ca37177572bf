"""The training runs behind the headlines of ScaleCom and AdaComp."""

from dataclasses import asdict, dataclass
from typing import Any

import gradwire
from benches.accuracy import run as running
from benches.accuracy.methods import ADAMW, SGD, Method
from benches.accuracy.tasks.task import Task
from gradwire.memory import AdamCorrection
from gradwire.sparsify import BinMax

from .counting import Counting

EDITION = 1
"""Raise it when a task or the arithmetic changes: all runs are then made again."""

NO_MOMENTUM: dict[str, Any] = {"momentum": 0.0}
NO_FIRST_MOMENT: dict[str, Any] = {**ADAMW, "betas": (0.0, 0.999)}
DENSE = "dense"
QUICK = 10
"""A quick run makes this part of the steps."""


@dataclass(frozen=True)
class Setting:
    """A task, and how long it is trained.

    Attributes
    ----------
    batch : int
        Examples a step, of all ranks together.
    """

    task: str
    batch: int
    steps: int


SETTINGS = {
    "fully connected": Setting("fully connected", 256, 600),
    "large batch": Setting("fully connected", 2048, 300),
    "digits": Setting("digits", 64, 300),
    "fashion": Setting("fashion", 128, 400),
    "lstm": Setting("lstm", 16, 600),
}


def method(setting: str, name: str) -> Method:
    """Return a codec with the optimizer that is recommended for it."""
    sgd = setting != "lstm"
    if name == DENSE:
        return Method(None, "sgd", SGD) if sgd else Method(None, "adamw", ADAMW)
    codec = CODECS[name]
    if isinstance(codec.memory, AdamCorrection):
        return Method(codec, "adamw", ADAMW)
    # Error feedback acts as momentum: `benches.harness.optimizers`.
    return Method(codec, "sgd", NO_MOMENTUM) if sgd else Method(codec, "adamw", NO_FIRST_MOMENT)


CODECS = {
    **{f"scalecom {chunk}": gradwire.scalecom(chunk=chunk) for chunk in (65, 112, 200, 400)},
    **{
        f"scalecom {chunk}, beta {beta}": gradwire.scalecom(chunk=chunk, beta=beta)
        for chunk in (112,)
        for beta in (0.1, 0.3)
    },
    "adacomp": gradwire.adacomp(),
    "adacomp of Adam's steps": gradwire.adacomp(memory=AdamCorrection()),
}


@dataclass(frozen=True)
class Training:
    """One training run."""

    setting: str
    method: str
    ranks: int
    rate: float
    seed: int = 0
    quick: bool = False

    def known(self) -> bool:
        """Tell whether setting and method are still there."""
        return self.setting in SETTINGS and (self.method == DENSE or self.method in CODECS)

    def key(self) -> dict[str, Any]:
        """Return everything that determines the run, as plain data."""
        config = method(self.setting, self.method).config()
        found = SETTINGS[self.setting]
        return {"edition": EDITION, **asdict(self), **asdict(found), "config": config}

    def make(self, task: Task) -> dict[str, Any]:
        """Train."""
        chosen = method(self.setting, self.method)
        steps = SETTINGS[self.setting].steps // (QUICK if self.quick else 1)
        counting = None
        if chosen.codec is not None and isinstance(chosen.codec.sparsify, BinMax):
            counting = Counting(chosen)
        curve = running.run(
            task,
            chosen if counting is None else counting,
            self.rate,
            ranks=self.ranks,
            seed=self.seed,
            steps=steps,
            evaluations=2,
        )
        found = {**asdict(curve), "facts": task.facts()}
        return found if counting is None else {**found, "sent": counting.record()}
