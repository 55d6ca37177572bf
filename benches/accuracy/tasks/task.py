"""The interface of a task."""

from collections.abc import Iterator
from typing import Any, Protocol

from torch import Tensor, nn


class Task(Protocol):
    """Model and data for simulated ranks."""

    def model(self, seed: int) -> nn.Module:
        """Return a newly initialized model."""

    def batches(self, rank: int, ranks: int, seed: int) -> Iterator[Any]:
        """Yield a rank's share of every global batch, endlessly."""

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the mean loss of a batch."""

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Return the means over the held-out data; ``loss`` and others."""

    def facts(self) -> dict[str, object]:
        """Return facts about data and model, for the record."""
