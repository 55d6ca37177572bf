"""Code that all tasks share, and the digits: scikit-learn ships them, so nothing is downloaded.

A task fixes everything that the methods under comparison must share: initial weights and data
order. Another seed gives other weights and another order of the same data. Nothing here depends on
compression.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn import functional

SEED = 20260101
Batch = tuple[Tensor, Tensor]


def share_of_rate(step: int, steps: int) -> float:
    """Return the learning rate of a step as a share of the highest.

    It warms up over a tenth of the steps, then decays along a cosine to a tenth.
    """
    warm = max(1, steps // 10)
    return min(1.0, (step + 1) / warm) * (0.55 + 0.45 * math.cos(math.pi * min(1.0, step / steps)))


def loss_sum(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor, int]:
    """Return the summed cross-entropy, the number of correct predictions, and their total."""
    inputs, targets = batch
    logits = model(inputs)
    logits = logits.reshape(-1, logits.shape[-1])
    targets = targets.reshape(-1)
    loss = functional.cross_entropy(logits, targets, reduction="sum")
    return loss, (logits.argmax(dim=-1) == targets).sum(), targets.numel()


def half_hook(group: Any, bucket: Any) -> Any:
    """Do what torch's ``bf16_compress_hook`` does.

    DDP knows that one by its name, and refuses it on builds without NCCL.
    """
    return default_hooks.bf16_compress_hook(group, bucket)


half_hook.__annotations__.clear()  # DDP insists that annotations, if there are any, are its own


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
        from sklearn.datasets import load_digits  # what only trains on text does without

        images, labels = load_digits(return_X_y=True)
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
            order = torch.randperm(len(labels), generator=generator)
            for group in torch.split(order, self._batch):
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
