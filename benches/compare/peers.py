"""The peers, each in the best form available on a CPU, and each with error feedback.

Those that select in torch are in `selecting`; the others are here.
"""

from typing import Any

import numpy as np
import torch
import zstandard
from torch import Tensor

import gradwire
from gradwire.quantize import Float32

from .contestant import Array, Contestant
from .selecting import Sampling, SidcoInTorch, TorchKthValue, TorchTopK


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
