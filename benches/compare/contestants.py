"""gradwire's codecs as contestants, and the peers that need numpy or zstandard."""

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

import gradwire
from gradwire.memory import Residual
from gradwire.presets import PRESETS, Preset
from gradwire.quantize import BFloat16, Float16

from .peers import HOOKS, SIDE, Array, Contestant, Sampling, SidcoInTorch, TorchKthValue, TorchTopK


class Ours(Contestant):
    """A codec in its steady state, after a few steps."""

    make: ClassVar[Callable[[float, int], gradwire.Codec]]
    cold: ClassVar[bool]

    def __init__(self, numel: int, ratio: float) -> None:
        super().__init__(numel, ratio)
        self.codec = type(self).make(ratio, numel)
        self.state = self.codec.init_state(numel)
        # Reserved for the worst case; only what a frame fills is ever mapped.
        self.buffer = np.zeros(self.codec.max_encoded_len(numel), np.uint8)

    def ready(self, gradient: Array) -> None:
        if self.cold:
            self.state.reset()

    def encode(self, gradient: Array) -> Any:
        return self.buffer[: self.codec.encode_into(gradient, self.state, self.buffer)]

    def decode_add(self, wire: Any, out: Array) -> None:
        gradwire.decode_add(wire, out)

    def nbytes(self, wire: Any) -> int:
        return len(wire)

    def count(self, wire: Any) -> int:
        return int((self.state.last or {"count": self.numel})["count"])


def ours(
    name: str, setting: str, make: Callable[[float, int], gradwire.Codec], *, cold: bool = False
) -> type[Ours]:
    """Return a codec of so many entries at a ratio as a contestant."""
    made = {"name": name, "setting": setting, "make": staticmethod(make), "cold": cold}
    return type(name, (Ours,), made)


ROUNDED = Residual(dtype="bfloat16")

OURS = (
    ours("gradwire topk", "exact, float32 values", lambda r, _: gradwire.topk(ratio=r)),
    ours(
        "gradwire topk, first step",
        "the same with a new state each time: no history, an empty residual",
        lambda r, _: gradwire.topk(ratio=r),
        cold=True,
    ),
    ours(
        "gradwire topk, low memory",
        "the same with one residual buffer in place of two, for one more read",
        lambda r, _: gradwire.topk(ratio=r, memory=Residual(low_memory=True)),
    ),
    ours(
        "gradwire topk, bf16 residual",
        "the residual in bfloat16, rounded by chance",
        lambda r, _: gradwire.topk(ratio=r, memory=ROUNDED),
    ),
    ours(
        "gradwire topk bf16",
        "exact, bfloat16 values, the rounding kept in the residual",
        lambda r, _: gradwire.topk(ratio=r, quantize=BFloat16()),
    ),
    ours(
        "gradwire adam",
        "steps of local Adam, exact top-k, bfloat16 values",
        lambda r, _: gradwire.adam(ratio=r),
    ),
    ours(
        "gradwire sidco",
        "generalized Pareto, adaptive stages, float32 values",
        lambda r, _: gradwire.sidco(ratio=r),
    ),
    ours(
        "gradwire sidco tracking",
        "the tail above a tracked bound alone, in one read",
        lambda r, _: gradwire.sidco(ratio=r, stages="tracking"),
    ),
    ours(
        "gradwire sidco, 2 stages",
        "the published two-stage fit without history, corrected to the band",
        lambda r, _: gradwire.sidco(ratio=r, stages=2),
    ),
    ours(
        "gradwire dense bf16",
        "every entry as bfloat16; no residual",
        lambda *_: gradwire.dense(quantize=BFloat16()),
    ),
    ours(
        "gradwire dense f16",
        "the same as float16, unscaled",
        lambda *_: gradwire.dense(quantize=Float16()),
    ),
)


def layer(preset: Preset, numel: int) -> gradwire.Codec:
    """Return the codec of a preset's example, for a layer of that many entries."""
    shape = (numel // SIDE, SIDE) if numel % SIDE == 0 else (numel,)
    return preset.build(**preset.example).for_shape(shape)


def call(preset: Preset) -> str:
    """Return how a preset's example is written."""
    return f"gradwire.{preset.build.__name__}{preset.call.removeprefix(preset.name)}"


def presets() -> Iterator[type[Ours]]:
    """Yield every preset with its author's example, on a layer."""
    for preset in PRESETS.values():
        yield ours(f"preset {preset.name}", call(preset), lambda _, n, p=preset: layer(p, n))  # type: ignore[misc]


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
        out[wire[0]] += wire[1]  # positions of one frame are distinct, so the faster form is right

    def nbytes(self, wire: tuple[Any, Array]) -> int:
        return 8 * len(wire[1])

    def count(self, wire: tuple[Any, Array]) -> int:
        return len(wire[1])


class Zstd(Contestant):
    name = "zstd of the dense tensor"
    setting = "level 1, lossless, so nothing is left over; as many threads as the row says"

    def __init__(self, numel: int, ratio: float) -> None:
        super().__init__(numel, ratio)
        import zstandard

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


class TorchHalf(Contestant):
    """The casts around a dense all-reduce in bfloat16; the sum is the all-reduce's own work."""

    name = "torch bf16 casts"
    setting = "what torch's bf16 communication hook does before and after its all-reduce"

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


PEERS: tuple[type[Contestant], ...] = (
    *(TorchTopK, TorchKthValue, NumpyPartition, Sampling, SidcoInTorch, TorchHalf, Zstd),
    *HOOKS,
)
