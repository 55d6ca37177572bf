"""The models that are packed: trained once, uncompressed, and kept with what determines them."""

import functools
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from benches.accuracy.pool import make_task
from benches.accuracy.run import Task
from benches.accuracy.tasks import fashion_data
from benches.harness import digits, results
from benches.harness.pages import ROOT
from benches.harness.recipes import recipe_for, scheduled
from benches.harness.tasks import Batch, loss_sum

from . import nets
from .plan import DIGITS, FASHION, GRU, TEXT, Model

FOLDER = ROOT / ".cache" / "weights"
SEED = 0


def available(data: Path | None) -> tuple[Model, ...]:
    """Return the models to pack: the digits stand in where Fashion-MNIST cannot be had."""
    try:
        fashion_data.folder(data)
    except fashion_data.MissingDataError:
        if data is not None:
            raise
        return TEXT, GRU, DIGITS
    return TEXT, GRU, FASHION


class Digits:
    """The digits of the demo, as a task of ``make accuracy``."""

    def __init__(self) -> None:
        self._source = digits.Digits()
        self.model, self.batches = self._source.model, self._source.batches
        self.facts = self._source.facts

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        total, _, count = loss_sum(model, batch)
        return total / count

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        (batch,) = self._source.held_out(0, 1)
        loss, right, count = loss_sum(model, batch)
        return {"loss": float(loss) / count, "accuracy": float(right) / count}


def task_of(name: str, data: Path | None) -> Task:
    """Return the task of a model."""
    own: dict[str, type[Task]] = {
        "gru": nets.RecurrentText,
        "lstm": nets.MemoryText,
        "wide": nets.WideText,
        "mixture": nets.MixtureText,
        "digits": Digits,
    }
    task: Task = own[name]() if name in own else make_task(name, data)
    return task


_versions = functools.cache(results.versions)


def settings(model: Model) -> dict[str, Any]:
    """Return what determines trained weights, but for the processor."""
    return {
        "model": model.name,
        "edition": model.edition,
        "steps": model.steps,
        "learning_rate": model.learning_rate,
        "seed": SEED,
        # The text is that of Python's library.
        "versions": _versions("torch"),
    }


@functools.cache
def fingerprint(model: Model) -> str:
    """Return a short hash of the settings."""
    text = json.dumps(settings(model), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def place(model: Model, folder: Path) -> Path:
    """Return where the weights of a model are kept."""
    return folder / f"{model.name}-{fingerprint(model)}.safetensors"


def train(model: Model, task: Task) -> nn.Module:
    """Train from scratch."""
    net = task.model(SEED)
    optimizer = recipe_for("adamw", None).optimizer(net.parameters(), model.learning_rate)
    schedule = scheduled(optimizer, model.steps)
    batches: Iterator[Any] = task.batches(0, 1, SEED)
    for _ in range(model.steps):
        optimizer.zero_grad()
        task.loss(net, next(batches)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
    return net


def keep(net: nn.Module, model: Model, task: Task, folder: Path) -> None:
    """Save trained weights with what determines them, beside the file first."""
    folder.mkdir(parents=True, exist_ok=True)
    path = place(model, folder)
    part = path.with_suffix(".part")
    facts = json.dumps({**settings(model), "facts": task.facts()})
    save_file(net.state_dict(), part, {"trained": facts})
    part.replace(path)


def trained(model: Model, task: Task, folder: Path) -> nn.Module:
    """Return a trained model; OSError if it is not kept there."""
    net = task.model(SEED)
    net.load_state_dict(load_file(place(model, folder)))
    return net.eval()
