"""A small residual network with BatchNorm on Fashion-MNIST."""

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from benches.harness.tasks import Batch

from . import fashion_data

SEED = 20260101
GLOBAL_BATCH = 128
WIDTHS = (16, 32, 64)


class Block(nn.Module):
    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, width, 3, stride, 1, bias=False)
        self.norm_first = nn.BatchNorm2d(width)
        self.second = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.norm_second = nn.BatchNorm2d(width)
        self.act_first, self.act = nn.ReLU(), nn.ReLU()
        self.around: nn.Module = nn.Identity()
        if stride != 1 or before != width:
            self.around = nn.Sequential(
                nn.Conv2d(before, width, 1, stride, bias=False), nn.BatchNorm2d(width)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = self.act_first(self.norm_first(self.first(x)))
        out: Tensor = self.act(self.norm_second(self.second(y)) + self.around(x))
        return out


class FashionNet(nn.Module):
    """A ResNet of three blocks: 0.08 M parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(1, WIDTHS[0], 3, 2, 1, bias=False), nn.BatchNorm2d(WIDTHS[0]), nn.ReLU()
        )
        self.blocks = nn.Sequential(
            *(
                Block(before, width, 1 if before == width else 2)
                for before, width in zip((WIDTHS[0], *WIDTHS), WIDTHS, strict=False)
            )
        )
        self.head = nn.Linear(WIDTHS[-1], 10)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.blocks(self.stem(images)).mean(dim=(2, 3)))
        return logits


class Fashion:
    """Grey images of clothes, 28 x 28, in ten classes; mirrored at random."""

    def __init__(self, place: Path | None = None) -> None:
        arrays = fashion_data.load(fashion_data.folder(place))
        images, labels, test_images, test_labels = (torch.tensor(each) for each in arrays)
        self._train = _prepared(images), labels.long()
        self._test = _prepared(test_images), test_labels.long()

    def model(self, seed: int) -> nn.Module:
        torch.manual_seed(SEED + seed)
        return FashionNet()

    def batches(self, rank: int, ranks: int, seed: int) -> Iterator[Batch]:
        images, labels = self._train
        generator = torch.Generator().manual_seed(SEED + seed)
        while True:
            order = torch.randperm(len(labels), generator=generator)
            for group in torch.split(order, GLOBAL_BATCH):
                mirrored = torch.rand(GLOBAL_BATCH, generator=generator) < 0.5
                if len(group) == GLOBAL_BATCH:
                    mine, turn = group[rank::ranks], mirrored[rank::ranks]
                    chosen = images[mine]
                    chosen[turn] = chosen[turn].flip(-1)
                    yield chosen, labels[mine]

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        images, labels = batch
        return functional.cross_entropy(model(images), labels)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        images, labels = self._test
        logits = torch.cat([model(part) for part in torch.split(images, 500)])
        return {
            "loss": float(functional.cross_entropy(logits, labels)),
            "accuracy": float((logits.argmax(1) == labels).double().mean()),
        }

    def facts(self) -> dict[str, object]:
        return {
            "data": "Fashion-MNIST",
            "training_images": len(self._train[1]),
            "held_out_images": len(self._test[1]),
        }


def _prepared(images: Tensor) -> Tensor:
    return (images.float().unsqueeze(1) / 255 - 0.286) / 0.353
