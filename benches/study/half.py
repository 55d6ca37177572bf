"""Averages in bfloat16 of simulated ranks, as torch's ``bf16_compress_hook`` makes them."""

import torch
from torch import Tensor

from benches.accuracy.flat import Flat


class Half:
    """Every entry in bfloat16: rounded, divided by the ranks, and added up in bfloat16.

    The sum of more than two ranks depends on their order, which on a ring is another one for each
    part of a bucket; here it is that of the ranks.
    """

    def __init__(self, flat: Flat, ranks: int) -> None:
        self._ranks = ranks
        self._sum = torch.zeros_like(flat.gradients, dtype=torch.bfloat16)
        self.nbytes = 2 * (ranks - 1) / ranks * 2 * flat.numel

    def take(self, rank: int, gradients: Tensor) -> None:
        """Add the gradients of a rank; ranks come in order."""
        part = gradients.to(torch.bfloat16).div_(self._ranks)
        if rank == 0:
            self._sum.copy_(part)
        else:
            self._sum.add_(part)

    def average(self, out: Tensor) -> None:
        """Write the average."""
        out.copy_(self._sum)
