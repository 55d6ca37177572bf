"""A convolutional network on scikit-learn's handwritten digits."""

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor, nn

from benches.harness.tasks import SEED, Batch, loss_sum


class DigitsNet(nn.Module):
    """Two convolutions and two dense layers for 8 x 8 images: 0.48 M parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(64 * 4 * 4, 448),
            nn.ReLU(),
            nn.Linear(448, 10),
        )

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.layers(images)
        return logits


class Digits:
    """scikit-learn's handwritten digits: 1 797 grey images of 8 x 8, a fifth of them held out.

    The global batch has ``batch`` images; ``net`` makes the network.
    """

    def __init__(self, batch: int = 32, net: Callable[[], nn.Module] = DigitsNet) -> None:
        from sklearn import datasets  # which takes seconds

        images, labels = datasets.load_digits(return_X_y=True)
        order = np.random.default_rng(SEED).permutation(len(labels))
        images = torch.from_numpy((images[order] / 16.0).astype(np.float32)).reshape(-1, 1, 8, 8)
        labels = torch.from_numpy(labels[order].astype(np.int64))
        cut = len(labels) // 5
        self._test, self._train = (images[:cut], labels[:cut]), (images[cut:], labels[cut:])
        self._batch, self._net = batch, net

    def model(self, seed: int) -> nn.Module:
        torch.manual_seed(SEED + seed)
        return self._net()

    def batches(self, rank: int, ranks: int, seed: int) -> Iterator[Batch]:
        images, labels = self._train
        generator = torch.Generator().manual_seed(SEED + seed)
        while True:
            for group in torch.randperm(len(labels), generator=generator).split(self._batch):
                if len(group) == self._batch:
                    mine = group[rank::ranks]
                    yield images[mine], labels[mine]

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        total, _, count = loss_sum(model, batch)
        return total / count

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        loss, right, count = loss_sum(model, self._test)
        return {"loss": float(loss) / count, "accuracy": float(right) / count}

    def facts(self) -> dict[str, object]:
        return {
            "data": "sklearn.datasets.load_digits",
            "training_images": len(self._train[1]),
            "held_out_images": len(self._test[1]),
        }
