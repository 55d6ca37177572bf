"""The digits of ``make demo``, scikit-learn's."""

from collections.abc import Iterator

from torch import Tensor, nn

from benches.harness.digits import Digits as Source
from benches.harness.tasks import Batch, loss_sum

GLOBAL_BATCH = 64


class Digits:
    """A small convolutional network on handwritten digits."""

    def __init__(self, global_batch: int = GLOBAL_BATCH) -> None:
        self._source = Source(batch=global_batch)

    def model(self, seed: int) -> nn.Module:
        """Return a newly initialized model."""
        return self._source.model(seed)

    def batches(self, rank: int, ranks: int, seed: int) -> Iterator[Batch]:
        """Yield a rank's share of every global batch, endlessly."""
        for images, labels in self._source.batches(0, 1, seed):
            yield images[rank::ranks], labels[rank::ranks]

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean loss of a batch."""
        total, _, count = loss_sum(model, batch)
        return total / count

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Return loss and accuracy."""
        ((images, labels),) = self._source.held_out(0, 1)
        loss, right, count = loss_sum(model, (images, labels))
        return {"loss": float(loss) / count, "accuracy": int(right) / count}

    def facts(self) -> dict[str, object]:
        """Return facts about data and model, for the record."""
        facts = self._source.facts()
        return {name: facts[name] for name in ("data", "training_images", "held_out_images")}
