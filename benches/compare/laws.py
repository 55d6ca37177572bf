"""The gradients that the contestants compress."""

import functools
from collections.abc import Callable

import numpy as np

from .contestants import Array

SEED = 20210405
CHUNK = 1 << 20


def laplace(numel: int, step: int) -> Array:
    """Laplace (double exponential) entries: the distribution that SIDCo's simplest fit assumes."""
    return _in_chunks(numel, step, lambda generator, size: generator.laplace(size=size))


def student(numel: int, step: int) -> Array:
    """Student's t with 3 degrees of freedom: tails as heavy as real gradients have them."""
    return _in_chunks(numel, step, lambda generator, size: generator.standard_t(3, size))


LAWS: dict[str, Callable[[int, int], Array]] = {
    "laplace": laplace,
    "student-t3": student,
}

HEADLINE = "student-t3"
"""The distribution with the heaviest tails, as real gradients have them."""


@functools.lru_cache(maxsize=1)
def gradients(law: str, numel: int) -> tuple[Array, ...]:
    """Return the gradients of two steps, kept for the cases that follow with the same ones."""
    return tuple(LAWS[law](numel, step) for step in range(2))


def _in_chunks(
    numel: int,
    step: int,
    draw: Callable[[np.random.Generator, int], "np.ndarray[tuple[int], np.dtype[np.float64]]"],
) -> Array:
    """Draw in float64 by pieces, so that the largest tensor needs no double in memory."""
    generator = np.random.default_rng((SEED, step))
    out = np.empty(numel, np.float32)
    for start in range(0, numel, CHUNK):
        size = min(CHUNK, numel - start)
        out[start : start + size] = 1e-3 * draw(generator, size)
    return out
