"""Inputs of the benchmarks: the same on every commit and machine."""

import numpy as np
from numpy.typing import NDArray


def gradients(numel: int, steps: int) -> list[NDArray[np.float32]]:
    """Return ``steps`` tensors with heavy tails, as gradients have them, seeded.

    A normal variable times an exponential one: quick to draw, for every benchmark draws anew.
    """
    generator = np.random.default_rng(20210405)
    return [
        generator.standard_normal(numel, np.float32)
        * generator.standard_exponential(numel, np.float32)
        for _ in range(steps)
    ]
