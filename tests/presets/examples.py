"""Every preset as its example makes it, and tensors to try it on."""

from collections.abc import Callable

import numpy as np

import gradwire
from gradwire import quantize
from gradwire.presets import PRESETS, Preset

SHAPE = (48, 64)
"""Of a matrix: what depends on a tensor's shape has one to depend on."""


def made(preset: Preset, shape: tuple[int, ...] = SHAPE) -> gradwire.Codec:
    """The codec that the example of a preset makes, for a tensor of this shape."""
    return preset.build(**preset.example).for_shape(shape)


def made_for_kernels(preset: Preset, shape: tuple[int, ...] = SHAPE) -> gradwire.Codec:
    """The same for CUDA: kernels send the floats themselves that the core codes without loss."""
    codec = made(preset, shape)
    used = codec.quantize
    return codec.replace(quantize=used.plain) if isinstance(used, quantize.Lossless) else codec


def gradient(numel: int, seed: int = 0) -> np.ndarray:
    """Values with tails heavier than a normal law's, as gradients have; the same everywhere.

    Integers from a linear congruential generator, made float32 by an exact division: no library's
    random numbers and no rounding are in it, so that golden frames can depend on it.
    """
    word, out = (seed * 2_654_435_761 + 12_345) % 2**32, np.empty(numel, np.float32)
    for at in range(numel):
        word = (word * 1_664_525 + 1_013_904_223) % 2**32
        value = (word >> 8) - 2**23
        # The cube of a uniform number: most are small, few are large.
        out[at] = np.float32((value / 2**23) ** 3)
    return out


def steps(numel: int, count: int) -> list[np.ndarray]:
    """Gradients of some steps of training."""
    return [gradient(numel, seed) for seed in range(count)]


DEGENERATE: dict[str, np.ndarray] = {
    "nothing": np.zeros(0, np.float32),
    "one": np.array([-0.5], np.float32),
    "one zero": np.zeros(1, np.float32),
    "seven": gradient(7),
    "zeros": np.zeros(1000, np.float32),
    "negative zeros": np.full(999, -0.0, np.float32),
    "all equal": np.full(1000, 0.25, np.float32),
    "signs only": np.where(np.arange(1001) % 3 == 0, -1.0, 1.0).astype(np.float32),
    "one that is not zero": np.eye(1, 1003, 500, dtype=np.float32).ravel(),
    "subnormals": np.where(np.arange(777) % 2 == 0, 1e-44, -3e-42).astype(np.float32),
    "large": gradient(515) * np.float32(2.0**100),
    "tiny among large": np.array([1e30, 1e-30] * 100, np.float32),
}
"""Tensors that break careless code."""

presets = list(PRESETS.values())
names = list(PRESETS)


def frame_of(preset: Preset, make: Callable[..., gradwire.Codec] = made) -> bytes:
    """The second frame of a small matrix, of 12 x 16."""
    codec = make(preset, (12, 16))
    state = codec.init_state(192, name="w")
    codec.encode(gradient(192), state)
    return bytes(codec.encode(gradient(192, 1), state))
