"""What a task is, and what all tasks share.

The data is on every machine already: scikit-learn ships the handwritten digits, Python ships its
own sources. Both models have about half a million parameters, so that a gradient is some two
megabytes: small enough for two CPU cores, large enough for a slow link to hurt.

A task fixes everything that the methods under comparison have to share: initial weights, data
order, optimiser, learning rate. Another seed gives other weights and another order of the same
data. Nothing here knows about compression.
"""

import math
from collections.abc import Iterator
from typing import Any, Protocol

from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

SEED = 20260101
Batch = tuple[Tensor, Tensor]


class Task(Protocol):
    """What a rank needs to train and to evaluate."""

    def model(self, seed: int = 0) -> nn.Module:
        """Return a freshly initialised model, the same on every rank and for every method."""

    def optimizer(
        self, model: nn.Module, steps: int, groups: list[dict[str, Any]] | None = None
    ) -> tuple[Optimizer, LRScheduler]:
        """Return the optimiser and its schedule, which all methods share.

        With ``groups`` a codec applies momentum to some parameters, and they say to which: the
        optimiser must not do so again.
        """

    def batches(self, rank: int, ranks: int, seed: int = 0) -> Iterator[Batch]:
        """Yield this rank's batches for ever; the ranks' batches of one step never overlap."""

    def steps_per_epoch(self, ranks: int) -> int:
        """Return how many steps so many ranks take for all of the training data."""

    def held_out(self, rank: int, ranks: int) -> list[Batch]:
        """Return this rank's share of the held-out data, already cut into batches."""

    def facts(self) -> dict[str, object]:
        """Return what was trained on, for the record."""


def warm_up_then_cosine(optimizer: Optimizer, steps: int) -> LRScheduler:
    """Return the usual schedule: a tenth of the steps up, the rest of them down to a tenth."""
    warm = max(1, steps // 10)

    def factor(step: int) -> float:
        return min(1.0, (step + 1) / warm) * (
            0.55 + 0.45 * math.cos(math.pi * min(1.0, step / steps))
        )

    return LambdaLR(optimizer, factor)


def loss_sum(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor, int]:
    """Return the summed cross-entropy, the number of right answers, and the number of answers."""
    inputs, targets = batch
    logits = model(inputs)
    logits = logits.reshape(-1, logits.shape[-1])
    targets = targets.reshape(-1)
    loss = functional.cross_entropy(logits, targets, reduction="sum")
    return loss, (logits.argmax(dim=-1) == targets).sum(), targets.numel()
