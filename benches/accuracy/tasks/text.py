"""The text task of ``make demo``, with more held-out text."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from benches.harness.tasks import Batch, loss_sum
from benches.harness.text import Text as Source

GLOBAL_BATCH = 16
HELD_OUT = 1024


class Text:
    """A character-level transformer on Python source code: windows of 64 characters."""

    def __init__(self) -> None:
        self._source = Source(batch=GLOBAL_BATCH, held_out_windows=HELD_OUT)

    def model(self, seed: int) -> nn.Module:
        return self._source.model(seed)

    def batches(self, rank: int, ranks: int, seed: int) -> Iterator[Batch]:
        if GLOBAL_BATCH % ranks:
            raise ValueError(f"{GLOBAL_BATCH} windows do not divide among {ranks} ranks")
        for windows, targets in self._source.batches(0, 1, seed):
            yield windows[rank::ranks], targets[rank::ranks]

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        total, _, count = loss_sum(model, batch)
        return total / count

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        sums = torch.zeros(3, dtype=torch.float64)
        for batch in self._source.held_out(0, 1):
            loss, right, count = loss_sum(model, batch)
            sums += torch.tensor([loss.item(), right.item(), count], dtype=torch.float64)
        return {"loss": float(sums[0] / sums[2]), "accuracy": float(sums[1] / sums[2])}

    def facts(self) -> dict[str, object]:
        facts = self._source.facts()
        return {name: facts[name] for name in ("data", "training_characters", "sha256")}
