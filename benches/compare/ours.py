"""gradwire's codecs as contestants."""

from typing import Any, ClassVar

import numpy as np

import gradwire
from gradwire.quantize import BFloat16, Float16

from .contestant import Array, Contestant


class Ours(Contestant):
    """A codec in its steady state, after a few steps."""

    def __init__(self, numel: int, ratio: float) -> None:
        super().__init__(numel, ratio)
        self.codec = self.make(ratio)
        self.state = self.codec.init_state(numel)

    def make(self, ratio: float) -> gradwire.Codec:
        raise NotImplementedError

    def encode(self, gradient: Array) -> gradwire.Frame:
        return self.codec.encode(gradient, self.state)

    def decode_add(self, wire: gradwire.Frame, out: Array) -> None:
        gradwire.decode_add(wire, out)

    def nbytes(self, wire: gradwire.Frame) -> int:
        return wire.nbytes

    def count(self, wire: gradwire.Frame) -> int:
        return wire.count


class TopK(Ours):
    name = "gradwire topk"
    setting = "exact, float32 values, frame with checksum"

    def make(self, ratio: float) -> gradwire.Codec:
        return gradwire.topk(ratio=ratio)


class TopKCold(TopK):
    name = "gradwire topk, first step"
    setting = "the same with a new state each time: no history, an empty residual"
    whole: ClassVar[bool] = False

    def ready(self, gradient: Array) -> None:
        self.state.reset()


class TopKLowMemory(Ours):
    name = "gradwire topk, low memory"
    setting = "the same with one residual buffer in place of two, for one more read"

    def make(self, ratio: float) -> gradwire.Codec:
        return gradwire.topk(ratio=ratio, memory=gradwire.memory.Residual(low_memory=True))


class TopKRounded(Ours):
    name = "gradwire topk, bf16 residual"
    setting = "the same as the first with the residual in bfloat16, rounded by chance"

    def make(self, ratio: float) -> gradwire.Codec:
        return gradwire.topk(ratio=ratio, memory=gradwire.memory.Residual(dtype="bfloat16"))


class TopKHalf(Ours):
    name = "gradwire topk bf16"
    setting = "exact, bfloat16 values, the rounding kept in the residual"

    def make(self, ratio: float) -> gradwire.Codec:
        return gradwire.topk(ratio=ratio, quantize=BFloat16())


class Adam(Ours):
    name = "gradwire adam"
    setting = "steps of local Adam, exact top-k, bfloat16 values"

    def make(self, ratio: float) -> gradwire.Codec:
        return gradwire.adam(ratio=ratio)


class Sidco(Ours):
    name = "gradwire sidco"
    setting = "generalized Pareto, adaptive stages, float32 values"

    def make(self, ratio: float) -> gradwire.Codec:
        return gradwire.sidco(ratio=ratio)


class SidcoRounded(Ours):
    name = "gradwire sidco, bf16 residual"
    setting = "the same with the residual in bfloat16, rounded by chance"

    def make(self, ratio: float) -> gradwire.Codec:
        return gradwire.sidco(ratio=ratio, memory=gradwire.memory.Residual(dtype="bfloat16"))


class SidcoTracking(Ours):
    name = "gradwire sidco tracking"
    setting = "the tail above a tracked bound alone, in one read, float32 values"

    def make(self, ratio: float) -> gradwire.Codec:
        return gradwire.sidco(ratio=ratio, stages="tracking")


class SidcoPublished(Ours):
    name = "gradwire sidco, 2 stages"
    setting = "the published two-stage fit without history, corrected to the band, float32 values"

    def make(self, ratio: float) -> gradwire.Codec:
        return gradwire.sidco(ratio=ratio, stages=2)


class DenseHalf(Ours):
    name = "gradwire dense bf16"
    setting = "every entry as bfloat16, into a buffer that is there already; no residual"

    def __init__(self, numel: int, ratio: float) -> None:
        super().__init__(numel, ratio)
        self.buffer = np.zeros(self.codec.max_encoded_len(numel), np.uint8)

    def make(self, ratio: float) -> gradwire.Codec:
        return gradwire.dense(quantize=BFloat16())

    def encode(self, gradient: Array) -> Any:
        return self.buffer[: self.codec.encode_into(gradient, self.state, self.buffer)]

    def count(self, wire: Any) -> int:
        return self.numel


class DenseFloat16(DenseHalf):
    name = "gradwire dense f16"
    setting = "the same as float16, unscaled"

    def make(self, ratio: float) -> gradwire.Codec:
        return gradwire.dense(quantize=Float16())


class DenseNewFrame(Ours):
    name = "gradwire dense bf16, new frame"
    setting = "the same as bfloat16, into a new frame each time, whose memory has to be mapped"
    whole: ClassVar[bool] = False

    def make(self, ratio: float) -> gradwire.Codec:
        return gradwire.dense(quantize=BFloat16())


ALL: tuple[type[Ours], ...] = (
    TopK,
    TopKCold,
    TopKLowMemory,
    TopKRounded,
    TopKHalf,
    Adam,
    Sidco,
    SidcoRounded,
    SidcoTracking,
    SidcoPublished,
    DenseHalf,
    DenseFloat16,
    DenseNewFrame,
)
