"""A bucket that the kernels encode, and the same tensors encoded by the core, step by step."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

import gradwire
from tests.csrc.bucket.bucket import DeviceBucket
from tests.csrc.emulated.kernels import Kernels

Law = Callable[[np.random.Generator, int], NDArray[np.float32]]


class Pair:
    """States of the same tensors on either side. All that `encode` gives is compared.

    Parameters
    ----------
    kernels
        The compiled kernels.
    codecs, numels
        Of each tensor.
    blocks
        Blocks that are resident at once.
    """

    def __init__(
        self,
        kernels: Kernels,
        codecs: Sequence[gradwire.Codec],
        numels: Sequence[int],
        *,
        blocks: int = 3,
    ) -> None:
        self.codecs, self.numels = list(codecs), list(numels)
        self.device = DeviceBucket(kernels, self.codecs, self.numels, blocks=blocks, stream=3)
        self.states = [
            codec.init_state(n, name=f"w{i}", stream=3)
            for i, (codec, n) in enumerate(zip(self.codecs, self.numels, strict=True))
        ]

    def encode(
        self,
        gradients: Sequence[np.ndarray],
        *,
        limits: Sequence[int | None] | None = None,
        divisor: float = 1.0,
    ) -> list[bytes]:
        """Encode on both sides, compare frames, results and states; the frames."""
        limits = [None] * len(self.codecs) if limits is None else limits
        outcomes = self.device.encode(gradients, limits=limits, divisor=divisor)
        frames = []
        for i, (codec, state) in enumerate(zip(self.codecs, self.states, strict=True)):
            x = gradients[i]
            if divisor != 1.0:
                x = x.astype(np.float32) / np.float32(divisor)
            frame = bytes(codec.encode(x, state, max_nbytes=limits[i]))
            what = f"piece {i} of {self.numels[i]}, {codec!r}"
            assert outcomes[i].status == "ok", what
            assert outcomes[i].last == state.last, what
            assert outcomes[i].frame == frame, what
            assert outcomes[i].zero == (not np.any(gradients[i])), what
            frames.append(frame)
        self.compare()
        return frames

    def encode_at(
        self,
        gradients: Sequence[np.ndarray],
        supports: Sequence[NDArray[np.uint32]],
        *,
        limits: Sequence[int | None] | None = None,
    ) -> list[bytes]:
        """The same of entries at given positions; with limits, the smallest are left out."""
        trims = limits is not None
        limits = [None] * len(self.codecs) if limits is None else limits
        outcomes = self.device.encode(gradients, limits=limits, supports=supports, may_trim=trims)
        frames = []
        for i, (codec, state) in enumerate(zip(self.codecs, self.states, strict=True)):
            native = codec._codec
            frame = native.encode_at(
                gradients[i], state, supports[i], limits[i], False, may_trim=trims
            )
            what = f"piece {i} of {self.numels[i]}, {codec!r}"
            assert outcomes[i].status == "ok", what
            assert outcomes[i].last == state.last, what
            assert outcomes[i].frame == bytes(frame), what
            frames.append(bytes(frame))
        self.compare()
        return frames

    def rollback(self) -> None:
        """Undo the last encode on both sides."""
        self.device.rollback()
        for state in self.states:
            state.rollback()
        self.compare()

    def change(self, codecs: Sequence[gradwire.Codec]) -> None:
        """Go on with other codecs of the same kind, as a schedule does."""
        self.codecs = list(codecs)
        self.device.codecs = list(codecs)

    def compare(self) -> None:
        """Compare all that the states hold, bit for bit."""
        for i, state in enumerate(self.states):
            expected, found = state.state_dict(), self.device.state_dict(i)
            what = f"piece {i} of {self.numels[i]}, {self.codecs[i]!r}"
            assert found["step"] == expected["step"], what
            assert found["scalars"] == expected["scalars"], what
            for name in ("residual", "momentum", "second_moment"):
                if expected[name] is None:
                    assert found[name] is None, what
                else:
                    assert found[name].dtype == expected[name].dtype, what
                    bits = [array.view(np.uint8) for array in (found[name], expected[name])]
                    np.testing.assert_array_equal(bits[0], bits[1], err_msg=f"{name} of {what}")


def heavy(rng: np.random.Generator, numel: int) -> NDArray[np.float32]:
    """Tails heavier than a normal law's, as gradients have."""
    return (rng.standard_normal(numel) * rng.gamma(0.5, size=numel)).astype(np.float32)


def _ends(rng: np.random.Generator, numel: int) -> NDArray[np.float32]:
    """Numbers below and above the smallest normal one, and some whose squares are not in range."""
    x = heavy(rng, numel) * 10.0 ** rng.choice([-44, -38, -37, -19, 0, 20, 30], numel)
    return x.astype(np.float32)


def _one(rng: np.random.Generator, numel: int) -> NDArray[np.float32]:
    x = np.zeros(numel, np.float32)
    x[rng.integers(numel, size=min(numel, 1))] = -3
    return x


LAWS: dict[str, Law] = {
    "heavy": heavy,
    "all equal": lambda rng, n: np.full(n, 0.25, np.float32),
    "many ties": lambda rng, n: rng.choice(np.array([0, 1, -1, 2, 0.5], np.float32), n),
    "zeros": lambda rng, n: np.zeros(n, np.float32),
    "one non-zero": _one,
    "subnormal": lambda rng, n: (rng.integers(-9, 9, n) * 1e-44).astype(np.float32),
    "ends of the range": _ends,
    "layers": lambda rng, n: (heavy(rng, n) * 10.0 ** rng.integers(-6, 2, n)).astype(np.float32),
    "jumps": lambda rng, n: (heavy(rng, n) * 10.0 ** rng.integers(-3, 3)).astype(np.float32),
}
"""Gradients of one step: what selections and fits find hard."""
