"""A task that takes milliseconds, with BatchNorm and parameters on both sides of the limit."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

Batch = tuple[Tensor, Tensor]


class Toy:
    """Classify points by a hidden matrix."""

    def __init__(self, rows: int = 16) -> None:
        self.rows = rows
        generator = torch.Generator().manual_seed(7)
        self._hidden = torch.randn(32, 8, generator=generator)

    def model(self, seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Linear(32, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 48), nn.Linear(48, 8)
        )

    def batches(self, rank: int, ranks: int, seed: int) -> Iterator[Batch]:
        generator = torch.Generator().manual_seed(seed)
        while True:
            inputs = torch.randn(self.rows, 32, generator=generator)[rank::ranks]
            yield inputs, (inputs @ self._hidden).argmax(1)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        inputs, targets = batch
        return functional.cross_entropy(model(inputs), targets)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        inputs, targets = next(Toy(512).batches(0, 1, seed=99))
        logits = model(inputs)
        return {
            "loss": float(functional.cross_entropy(logits, targets)),
            "accuracy": float((logits.argmax(1) == targets).double().mean()),
        }

    def facts(self) -> dict[str, Any]:
        return {"data": "points"}
