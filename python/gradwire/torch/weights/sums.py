"""Sums over a layer's inputs: products of float32 in blocks, added in float64."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from gradwire.weights import Gram


@dataclasses.dataclass(frozen=True)
class Sum:
    """Second moments, sums and numbers of inputs: (groups, n, n), (groups, n) and (groups,)."""

    matrix: torch.Tensor
    total: torch.Tensor
    count: torch.Tensor

    @classmethod
    def of(cls, groups: Iterable[Iterable[torch.Tensor]]) -> "Sum":
        """Sum blocks of inputs, of shape (groups, samples, width), set by set of groups."""
        return cls(*map(torch.cat, zip(*map(_summed, groups), strict=True)))

    def __add__(self, other: "Sum | None") -> "Sum":
        """Add another sum, if there is one; all groups of either may have had the same inputs."""
        if other is None:
            return self
        mine, others = ((s.matrix, s.total, s.count) for s in (self, other))
        return Sum(*(a + b.to(a.device) for a, b in zip(mine, others, strict=True)))

    def gram(self) -> Gram:
        """Return the Gram matrix, on the host."""
        count = int(self.count.max())
        even = (self.matrix + self.matrix.mT).mul_(0.5)  # products may differ in a last bit
        matrix, mean = even.cpu().numpy(), self.total.cpu().numpy() / count
        return Gram(matrix, count, mean) if len(matrix) > 1 else Gram(matrix[0], count, mean[0])


def cross(before: Sequence[torch.Tensor], after: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return ``X^T Y`` of inputs of shape (groups, samples, width), as `Sum.of`."""
    return torch.cat([_product(x.to(y), y) for x, y in zip(before, after, strict=True)])


def _summed(blocks: Iterable[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    matrix: Any = 0
    total: Any = 0
    count = 0
    for block in blocks:
        matrix += (product := _product(block, block))
        total += block.sum(1).to(product)
        count += block.shape[1]
    return matrix, total, torch.full((len(total),), count)


def _product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    where = torch.device("cpu") if x.device.type == "mps" else x.device
    with torch.autocast(x.device.type, enabled=False):
        return (x.mT @ y).to(where, torch.float64)
