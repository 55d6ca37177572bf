"""Quantizers of another package, for tests."""

import dataclasses
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

import gradwire
from gradwire import extension


@dataclasses.dataclass(frozen=True, repr=False)
class Halves(extension.Quantizer):
    """The codes of bfloat16, rounded towards zero."""

    kind: ClassVar[str] = "test_halves"
    bits: ClassVar[int] = 16

    def encode(self, values: NDArray[np.float32], *, step: int, key: int) -> Any:
        assert not values.flags.writeable
        return (values.view(np.uint32) >> 16).astype("<u2")  # an array is bytes, too

    @classmethod
    def decode(cls, data: bytes, count: int) -> NDArray[np.float32]:
        return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)


@dataclasses.dataclass(frozen=True, repr=False)
class Dithered(extension.Quantizer):
    """Signs, kept or turned at random: the least that a value may take."""

    seed: int = 0
    kind: ClassVar[str] = "test_dithered"
    bits: ClassVar[int] = 1

    def encode(self, values: NDArray[np.float32], *, step: int, key: int) -> bytes:
        random = np.random.Generator(np.random.Philox(key + self.seed))
        scale = np.array([np.abs(values).max()], "<f4")
        up = random.random(values.size) * 2 * scale < values + scale
        return scale.tobytes() + np.packbits(up).tobytes()

    @classmethod
    def decode(cls, data: bytes, count: int) -> NDArray[np.float32]:
        scale = np.frombuffer(data, "<f4", count=1).astype(np.float32)
        up = np.unpackbits(np.frombuffer(data, np.uint8, offset=4), count=count)
        return np.where(up == 1, scale, -scale)


@dataclasses.dataclass(frozen=True, repr=False)
class Nested(extension.Quantizer):
    """Values in a frame of this package."""

    kind: ClassVar[str] = "test_nested"
    bits: ClassVar[int] = 9

    def encode(self, values: NDArray[np.float32], *, step: int, key: int) -> bytes:
        return bytes(gradwire.float8().encode(values))

    @classmethod
    def decode(cls, data: bytes, count: int) -> NDArray[np.float32]:
        return gradwire.decode(data, max_numel=count)
