"""Clicks that a hidden model generates: nearly all parameters are rows of embedding tables.

As in production, training sees every row once, ids follow Zipf's law, and gradients of the tables
are dense in memory but touch few rows a step.
"""

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

SEED = 20260101
GLOBAL_BATCH = 512
VOCABULARIES = (20, 50, 100, 200, 500, 1000, 1000, 2000, 2000, 3000, 5000, 5000)
EXPONENT = 1.1
NUMBERS = 4
WIDTH = 16
TRAINING_ROWS, HELD_OUT_ROWS = 1 << 20, 1 << 16

Batch = tuple[Tensor, Tensor, Tensor]


class ClickNet(nn.Module):
    """Embeddings, their pairwise products, and three layers on top: 0.33 M parameters."""

    def __init__(self) -> None:
        super().__init__()
        tables = [nn.Embedding(size, WIDTH) for size in VOCABULARIES]
        for table in tables:
            nn.init.normal_(table.weight, std=0.05)
        self.tables = nn.ModuleList(tables)
        self.numbers = nn.Linear(NUMBERS, WIDTH)
        fields = len(VOCABULARIES) + 1
        self.pairs = torch.triu_indices(fields, fields, 1)
        self.top = nn.Sequential(
            nn.Linear(fields * (fields - 1) // 2 + fields * WIDTH, 64),
            nn.ReLU(),
            nn.Linear(64, 32),
            nn.ReLU(),
            nn.Linear(32, 1),
        )

    def forward(self, ids: Tensor, numbers: Tensor) -> Tensor:
        found = [table(ids[:, field]) for field, table in enumerate(self.tables)]
        fields = torch.stack([self.numbers(numbers), *found], dim=1)
        products = fields @ fields.transpose(1, 2)
        pairs = products[:, self.pairs[0], self.pairs[1]]
        logits: Tensor = self.top(torch.cat([pairs, fields.flatten(1)], dim=1))
        return logits.squeeze(1)


class Clicks:
    """Predict clicks from twelve ids and four numbers."""

    def __init__(self, training_rows: int = TRAINING_ROWS, held_out_rows: int = HELD_OUT_ROWS):
        rows = [torch.from_numpy(each) for each in _generate(training_rows + held_out_rows)]
        self._train = [each[:training_rows] for each in rows]
        self._test = [each[training_rows:] for each in rows]

    def model(self, seed: int) -> nn.Module:
        torch.manual_seed(SEED + seed)
        return ClickNet()

    def batches(self, rank: int, ranks: int, seed: int) -> Iterator[Batch]:
        generator = torch.Generator().manual_seed(SEED + seed)
        while True:
            order = torch.randperm(len(self._train[0]), generator=generator)
            for group in torch.split(order, GLOBAL_BATCH):
                if len(group) == GLOBAL_BATCH:
                    yield _rows(self._train, group[rank::ranks])

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        ids, numbers, clicked = batch
        return functional.binary_cross_entropy_with_logits(model(ids, numbers), clicked)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        rows = torch.arange(len(self._test[0]))
        logits = torch.cat(
            [model(*_rows(self._test, part)[:2]) for part in torch.split(rows, 4096)]
        )
        clicked = self._test[2]
        loss = functional.binary_cross_entropy_with_logits(logits.double(), clicked.double())
        return {"loss": loss.item(), "auc": area(logits, clicked)}

    def facts(self) -> dict[str, object]:
        return {
            "data": f"{len(self._train[0])} generated rows, {len(self._test[0])} more held out",
            "vocabularies": list(VOCABULARIES),
            "clicks": float(self._train[2].mean()),
        }


def area(logits: Tensor, clicked: Tensor) -> float:
    """Return the area under the ROC curve: how often a click has the larger of two logits."""
    ranks = torch.empty(len(logits), dtype=torch.float64)
    ranks[torch.argsort(logits)] = torch.arange(1, len(logits) + 1, dtype=torch.float64)
    positive = clicked > 0.5
    count = int(positive.sum())
    others = len(logits) - count
    return float((ranks[positive].sum() - count * (count + 1) / 2) / (count * others))


def _rows(data: list[Tensor], which: Tensor) -> Batch:
    ids, numbers, clicked = (each[which] for each in data)
    return ids.long(), numbers, clicked


def _generate(rows: int) -> tuple[NDArray[np.int16], NDArray[np.float32], NDArray[np.float32]]:
    """Return ids, numbers, and clicks drawn from a hidden model of effects and interactions."""
    random = np.random.default_rng(SEED)
    ids = np.empty((rows, len(VOCABULARIES)), np.int16)
    numbers = random.standard_normal((rows, NUMBERS), dtype=np.float32)
    logits = -1.5 + numbers @ random.normal(0, 0.3, NUMBERS).astype(np.float32)
    factors = numbers @ random.normal(0, 0.15, (NUMBERS, 4)).astype(np.float32)
    squares = np.square(factors)
    for field, size in enumerate(VOCABULARIES):
        weights = 1.0 / np.arange(1, size + 1) ** EXPONENT
        drawn = np.searchsorted(np.cumsum(weights / weights.sum()), random.random(rows))
        ids[:, field] = np.minimum(drawn, size - 1)
        logits += random.normal(0, 0.25, size).astype(np.float32)[ids[:, field]]
        factor = random.normal(0, 0.25, (size, 4)).astype(np.float32)[ids[:, field]]
        factors += factor
        squares += np.square(factor)
    # Sum of the products of all pairs of fields, as in a factorization machine.
    logits += 0.5 * (np.square(factors) - squares).sum(1)
    clicked = random.random(rows) < 1 / (1 + np.exp(-logits))
    return ids, numbers, clicked.astype(np.float32)
