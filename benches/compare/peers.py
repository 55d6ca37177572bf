"""The peers, each in the best form available on a CPU, and each with error feedback.

All of them keep one residual in place: add the gradient, select, take the values, and set their
positions to zero. Positions are sent as int32 and values as float32, 8 bytes per entry, which is
the least that their implementations send.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import zstandard
from torch import Tensor

import gradwire
from gradwire.quantize import Float32

from .contestant import Array, Contestant


@dataclass
class Entries:
    """A message of positions and values, as the peers send it."""

    indices: Tensor
    values: Tensor


class Selecting(Contestant):
    """Error feedback around a selection in torch, with large buffers that are reused."""

    def __init__(self, numel: int, ratio: float) -> None:
        super().__init__(numel, ratio)
        self.residual = torch.zeros(numel)
        self.magnitude = torch.empty(numel)
        self.mask = torch.empty(numel, dtype=torch.bool)

    def select(self, magnitude: Tensor) -> Tensor:
        """Return the positions to send, given the magnitudes."""
        raise NotImplementedError

    def above(self, threshold: float | Tensor) -> Tensor:
        """Return the positions of the magnitudes above a threshold."""
        return torch.gt(self.magnitude, threshold, out=self.mask).nonzero().squeeze(1)

    def encode(self, gradient: Array) -> Entries:
        self.residual.add_(torch.from_numpy(gradient))
        indices = self.select(torch.abs(self.residual, out=self.magnitude))
        values = self.residual[indices]
        self.residual.index_fill_(0, indices, 0.0)
        return Entries(indices.to(torch.int32), values)

    def decode_add(self, wire: Entries, out: Array) -> None:
        torch.from_numpy(out).index_add_(0, wire.indices, wire.values)

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


class NumpyPartition(Contestant):
    name = "numpy.partition"
    setting = "numpy.partition gives the threshold; one thread is all it has"

    def __init__(self, numel: int, ratio: float) -> None:
        super().__init__(numel, ratio)
        self.residual = np.zeros(numel, np.float32)
        self.magnitude = np.empty(numel, np.float32)

    def encode(self, gradient: Array) -> tuple[Any, Array]:
        self.residual += gradient
        np.abs(self.residual, out=self.magnitude)
        kth = self.numel - self.target
        threshold = np.partition(self.magnitude, kth)[kth]
        indices = np.flatnonzero(self.magnitude >= threshold)
        values = self.residual[indices]
        self.residual[indices] = 0
        return indices.astype(np.int32), values

    def decode_add(self, wire: tuple[Any, Array], out: Array) -> None:
        # Positions of one frame are distinct, so the faster form is right.
        out[wire[0]] += wire[1]

    def nbytes(self, wire: tuple[Any, Array]) -> int:
        return 8 * len(wire[1])

    def count(self, wire: tuple[Any, Array]) -> int:
        return len(wire[1])


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
        sample = magnitude[torch.randint(self.numel, (size,))]
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

    def __init__(self, numel: int, ratio: float) -> None:
        super().__init__(numel, ratio)
        self.stages, self.steps, self.sent = 1, 0, 0.0

    def settle(self, gradient: Array) -> None:
        # The law decides the number of stages, not the length: find it on a piece.
        piece = gradient[: self.SETTLE_ON]
        twin = SidcoInTorch(len(piece), self.ratio)
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


class Zstd(Contestant):
    """A general compressor, level 1: on the dense tensor, or on our frame."""

    name = "zstd of the dense tensor"
    setting = "level 1, lossless, so nothing is left over; as many threads as the row says"

    def __init__(self, numel: int, ratio: float) -> None:
        super().__init__(numel, ratio)
        # zstd counts worker threads beside the caller's; 0 is the plain one-threaded mode.
        threads = torch.get_num_threads()
        self.squeeze = zstandard.ZstdCompressor(level=1, threads=threads if threads > 1 else 0)
        self.expand = zstandard.ZstdDecompressor()

    def encode(self, gradient: Array) -> bytes:
        return self.squeeze.compress(gradient.data.cast("B"))

    def decode_add(self, wire: bytes, out: Array) -> None:
        out += np.frombuffer(self.expand.decompress(wire), np.float32)

    def nbytes(self, wire: bytes) -> int:
        return len(wire)

    def count(self, wire: bytes) -> int:
        return self.numel


class ZstdOfFrame(Zstd):
    name = "zstd of topk's frame"
    setting = (
        "level 1 on gradwire's frame of exact top-k: what a general compressor still finds in it"
    )

    def __init__(self, numel: int, ratio: float) -> None:
        super().__init__(numel, ratio)
        self.codec = gradwire.topk(ratio=ratio, quantize=Float32())
        self.state = self.codec.init_state(numel)

    def encode(self, gradient: Array) -> bytes:
        return self.squeeze.compress(bytes(self.codec.encode(gradient, self.state)))

    def decode_add(self, wire: bytes, out: Array) -> None:
        gradwire.decode_add(self.expand.decompress(wire), out)

    def count(self, wire: bytes) -> int:
        return self.target


class TorchHalf(Contestant):
    """The casts around a dense all-reduce in bfloat16; the sum is the all-reduce's own work."""

    name = "torch bf16 casts"
    setting = "what torch's bf16 communication hook does before and after its all-reduce"
    whole = False

    def __init__(self, numel: int, ratio: float) -> None:
        super().__init__(numel, ratio)
        self.half = torch.empty(numel, dtype=torch.bfloat16)

    def encode(self, gradient: Array) -> Tensor:
        return self.half.copy_(torch.from_numpy(gradient))

    def decode_add(self, wire: Tensor, out: Array) -> None:
        torch.from_numpy(out).copy_(wire)

    def nbytes(self, wire: Tensor) -> int:
        return 2 * wire.numel()

    def count(self, wire: Tensor) -> int:
        return wire.numel()


ALL: tuple[type[Contestant], ...] = (
    TorchTopK,
    TorchKthValue,
    NumpyPartition,
    Sampling,
    SidcoInTorch,
    TorchHalf,
    Zstd,
    ZstdOfFrame,
)
