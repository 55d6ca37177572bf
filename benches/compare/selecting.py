"""Peers that select in torch, on a CPU or a GPU, each with error feedback.

All of them keep one residual in place: add the gradient, select, take the values, and set their
positions to zero. Positions are sent as int32 and values as float32, 8 bytes per entry, which is
the least that their implementations send.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from .contestant import Array, Contestant


@dataclass
class Entries:
    """A message of positions and values, as the peers send it."""

    indices: Tensor
    values: Tensor


class Selecting(Contestant):
    """Error feedback around a selection in torch, with large buffers that are reused."""

    def __init__(self, numel: int, ratio: float, device: str = "cpu") -> None:
        super().__init__(numel, ratio)
        self.device = device
        self.residual = torch.zeros(numel, device=device)
        self.magnitude = torch.empty(numel, device=device)
        self.mask = torch.empty(numel, dtype=torch.bool, device=device)

    def select(self, magnitude: Tensor) -> Tensor:
        """Return the positions to send, given the magnitudes."""
        raise NotImplementedError

    def above(self, threshold: float | Tensor) -> Tensor:
        """Return the positions of the magnitudes above a threshold."""
        return torch.gt(self.magnitude, threshold, out=self.mask).nonzero().squeeze(1)

    def encode(self, gradient: Array | Tensor) -> Entries:
        self.residual.add_(torch.as_tensor(gradient))
        indices = self.select(torch.abs(self.residual, out=self.magnitude))
        values = self.residual[indices]
        self.residual.index_fill_(0, indices, 0.0)
        return Entries(indices.to(torch.int32), values)

    def decode_add(self, wire: Entries, out: Array | Tensor) -> None:
        torch.as_tensor(out).index_add_(0, wire.indices, wire.values)

    def nbytes(self, wire: Entries) -> int:
        return 8 * wire.values.numel()

    def count(self, wire: Entries) -> int:
        return wire.values.numel()


class TorchTopK(Selecting):
    name = "torch.topk"
    setting = "torch.topk of the magnitudes, sorted=False, then a gather"

    def select(self, magnitude: Tensor) -> Tensor:
        return magnitude.topk(self.target, sorted=False).indices


class TorchKthValue(Selecting):
    name = "torch.kthvalue"
    setting = "torch.kthvalue gives the threshold; entries at or above it go"

    def select(self, magnitude: Tensor) -> Tensor:
        threshold = magnitude.kthvalue(self.numel - self.target + 1).values
        return torch.ge(magnitude, threshold, out=self.mask).nonzero().squeeze(1)


class Sampling(Selecting):
    """Threshold from a sample (Lin et al., "Deep Gradient Compression", ICLR 2018)."""

    name = "DGC sampling"
    setting = (
        "1 % sample drawn with replacement (no permutation of n), threshold from its top entries, "
        "a second selection among the survivors when more than 1.3 k passed"
    )

    def select(self, magnitude: Tensor) -> Tensor:
        size = max(math.ceil(0.01 * self.numel), math.ceil(2 / self.ratio))
        if size >= self.numel:
            return magnitude.topk(self.target, sorted=False).indices
        sample = magnitude[torch.randint(self.numel, (size,), device=self.device)]
        threshold = sample.topk(math.ceil(size * self.ratio), sorted=False).values.min()
        for _ in range(10):
            indices = self.above(threshold)
            if len(indices) >= 0.8 * self.target:
                break
            threshold *= 0.8
        if len(indices) > 1.3 * self.target:
            indices = indices[magnitude[indices].topk(self.target, sorted=False).indices]
        return indices


class SidcoInTorch(Selecting):
    """The exponential variant, which is the fastest (Abdelmoniem et al., MLSys 2021)."""

    name = "SIDCo in torch"
    setting = (
        "SIDCo-E as published: exponential fit, a quarter kept by the first stage, later stages "
        "on the survivors alone, the number of stages adapted every 5 steps"
    )
    FIRST, EVERY, TOLERANCE = 0.25, 5, 0.2
    SETTLE_ON, SETTLE_STEPS = 1 << 18, 60

    def __init__(self, numel: int, ratio: float, device: str = "cpu") -> None:
        super().__init__(numel, ratio, device)
        self.stages, self.steps, self.sent = 1, 0, 0.0

    def settle(self, gradient: Array | Tensor) -> None:
        # The law decides the number of stages, not the length: find it on a piece.
        piece = gradient[: self.SETTLE_ON]
        twin = SidcoInTorch(len(piece), self.ratio, self.device)
        for _ in range(self.SETTLE_STEPS):
            twin.encode(piece)
        self.stages = twin.stages

    def select(self, magnitude: Tensor) -> Tensor:
        single = self.stages == 1 or self.ratio >= self.FIRST
        first = self.ratio if single else self.FIRST
        threshold = float(magnitude.mean()) * math.log(1 / first)
        tail = magnitude[magnitude > threshold]
        if not single:
            share = (self.ratio / self.FIRST) ** (1 / (self.stages - 1))
            for _ in range(self.stages - 1):
                if not len(tail):
                    break
                threshold += (float(tail.mean()) - threshold) * math.log(1 / share)
                tail = tail[tail > threshold]
        indices = self.above(threshold)
        self._adapt(len(indices) / self.target)
        return indices

    def _adapt(self, achieved: float) -> None:
        self.steps += 1
        self.sent += achieved
        if self.steps % self.EVERY == 0:
            mean, self.sent = self.sent / self.EVERY, 0.0
            if mean > 1 + self.TOLERANCE:
                self.stages -= 1
            elif mean < 1 - self.TOLERANCE:
                self.stages += 1
            highest = max(1, math.ceil(math.log(self.ratio) / math.log(0.5)))
            self.stages = min(max(self.stages, 1), highest)
