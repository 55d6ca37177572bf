"""The models that are packed: trained once, uncompressed, and kept with what determines them."""

import functools
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

from benches.accuracy.pool import make_task
from benches.accuracy.run import Task
from benches.accuracy.tasks import fashion_data
from benches.accuracy.tasks.text import ALPHABET, Text, TextNet
from benches.harness import results
from benches.harness.pages import ROOT
from benches.harness.recipes import recipe_for, scheduled
from benches.harness.tasks import Digits

FOLDER = ROOT / ".cache" / "weights"
SEED = 0
LENGTH = 64


@dataclass(frozen=True)
class Model:
    """A model with the steps and the highest learning rate of its training by AdamW.

    Raise ``edition`` when the task or the training changes. ``seconds`` is about what training
    takes on one core.
    """

    name: str
    title: str
    steps: int
    learning_rate: float
    seconds: float
    edition: int = 1


TEXT = Model("text", "Text, transformer", 2400, 0.002, 110)
GRU = Model("gru", "Text, GRU", 1600, 0.004, 60)
FASHION = Model("fashion", "Fashion-MNIST, ResNet", 1400, 0.016, 80)
WIDE = Model("wide", "Text, wide transformer", 1600, 0.001, 480)
MIXTURE = Model("mixture", "Text, mixture of experts", 2000, 0.002, 170)
DIGITS = Model("digits", "Digits, convolutions", 400, 0.002, 5)


def images(data: Path | None) -> Model:
    """Return the model on images: the digits stand in where Fashion-MNIST cannot be had."""
    try:
        fashion_data.folder(data)
    except fashion_data.MissingDataError:
        if data is not None:
            raise
        return DIGITS
    return FASHION


class Recurrent(nn.Module):
    """A character-level GRU of one layer: 0.28 M parameters."""

    def __init__(self, width: int = 64, hidden: int = 256) -> None:
        super().__init__()
        self.character = nn.Embedding(len(ALPHABET), width)
        self.cells = nn.GRU(width, hidden, batch_first=True)
        self.head = nn.Linear(hidden, len(ALPHABET))

    def forward(self, text: Tensor) -> Tensor:
        logits: Tensor = self.head(self.cells(self.character(text))[0])
        return logits


class Experts(nn.Module):
    """Feed-forward networks of which a router picks two for each row of x."""

    def __init__(self, width: int, hidden: int, count: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, count, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))
            for _ in range(count)
        )

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        best, chosen = self.router(rows).topk(2)
        shares = functional.softmax(best, dim=-1)
        y = torch.zeros_like(rows)
        for number, expert in enumerate(self.experts):
            row, place = (chosen == number).nonzero(as_tuple=True)
            if len(row):
                y = y.index_add(0, row, shares[row, place, None] * expert(rows[row]))
        return y.view_as(x)


def mixture() -> nn.Module:
    """Return the transformer with six experts of half its hidden width in a block: 0.96 M."""
    net = TextNet(LENGTH)
    for block in net.blocks:
        block.feed = Experts(128, 256, 6)
    return net


class OtherText(Text):
    """The text task with another network than its own."""

    def __init__(self, net: Callable[[], nn.Module]) -> None:
        super().__init__()
        self._net = net

    def model(self, seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return self._net()


OWN: dict[str, Callable[[], Task]] = {
    "gru": lambda: OtherText(Recurrent),
    "wide": lambda: OtherText(lambda: TextNet(LENGTH, width=256, depth=4)),
    "mixture": lambda: OtherText(mixture),
    "digits": Digits,
}


def task_of(name: str, data: Path | None) -> Task:
    task: Task = OWN[name]() if name in OWN else make_task(name, data)
    return task


@functools.cache
def place(model: Model, folder: Path) -> Path:
    """Return where weights are kept: a hash of what determines them is in the name."""
    text = json.dumps(_settings(model), sort_keys=True)
    return folder / f"{model.name}-{hashlib.sha256(text.encode()).hexdigest()[:12]}.safetensors"


def _settings(model: Model) -> dict[str, Any]:
    return {
        "model": model.name,
        "edition": model.edition,
        "steps": model.steps,
        "learning_rate": model.learning_rate,
        "seed": SEED,
        "versions": results.versions("torch"),  # and Python's, whose library is the text
    }


def train(model: Model, task: Task) -> nn.Module:
    net = task.model(SEED)
    optimizer = recipe_for("adamw", None).optimizer(net.parameters(), model.learning_rate)
    schedule = scheduled(optimizer, model.steps)
    batches = task.batches(0, 1, SEED)
    for _ in range(model.steps):
        optimizer.zero_grad()
        task.loss(net, next(batches)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
    return net


def trained(model: Model, task: Task, folder: Path) -> nn.Module:
    """Return a trained model: the one that is kept, or one that is trained now and kept."""
    path = place(model, folder)
    if not path.exists():
        net = train(model, task)
        folder.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        facts = json.dumps({**_settings(model), "facts": task.facts()})
        save_file(net.state_dict(), part, {"trained": facts})
        part.replace(path)
    net = task.model(SEED)
    net.load_state_dict(load_file(path))
    return net.eval()
