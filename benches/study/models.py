"""What the processes of ranks train: the tasks of `benches.accuracy`, and a large model."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benches.accuracy.worker import make_task

from .plan import LARGE

LAYERS, WIDTH, ROWS = 24, 1024, 256


class Network(nn.Module):
    """Square layers with ReLU between them: 25.2 M parameters."""

    def __init__(self, weights: Tensor) -> None:
        super().__init__()
        self.layers = nn.ParameterList(nn.Parameter(weight) for weight in weights)

    def forward(self, x: Tensor) -> Tensor:
        """Return the activations."""
        for weight in self.layers:
            x = nn.functional.relu(nn.functional.linear(x, weight))
        return x


class Large:
    """A model as large as a ResNet-50 on rows that are drawn at random.

    Every rank has 256 rows a step, so about 40 GFLOP. Only its time is of interest: all models
    share their weights, which saves memory.
    """

    def __init__(self) -> None:
        torch.manual_seed(0)
        self._weights = torch.randn(LAYERS, WIDTH, WIDTH).mul_((2 / WIDTH) ** 0.5)

    def model(self, seed: int) -> nn.Module:
        """Return a model with the shared weights."""
        return Network(self._weights)

    def batches(self, rank: int, ranks: int, seed: int) -> Iterator[tuple[Tensor, ...]]:
        """Yield rows of all ranks, the same each time."""
        rows = torch.randn(ROWS * 4, WIDTH), torch.randn(ROWS * 4, WIDTH)
        while True:
            yield rows

    def loss(self, model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        """Return the mean squared error."""
        rows, targets = batch
        return nn.functional.mse_loss(model(rows), targets)


def timed(name: str, data: Path | None) -> Any:
    """Return a task to time: the clicks need few rows for that."""
    if name == LARGE:
        return Large()
    if name == "clicks":
        from benches.accuracy.tasks.clicks import Clicks

        return Clicks(1 << 13, 1 << 9)
    return make_task(name, data)


def shares(task: Any, rank: int, ranks: int, seed: int) -> Iterator[tuple[Tensor, ...]]:
    """Yield a rank's share of every global batch; some ranks have a row more than others.

    It is that of ``task.batches`` wherever the batch divides among the ranks.
    """
    if isinstance(task, Large):
        for batch in task.batches(rank, ranks, seed):
            yield tuple(each[rank * ROWS : (rank + 1) * ROWS] for each in batch)
    for batch in task.batches(0, 1, seed):
        # Contiguous, as tasks make them: sums over strided rows are rounded differently.
        yield tuple(each[rank::ranks].contiguous() for each in batch)
