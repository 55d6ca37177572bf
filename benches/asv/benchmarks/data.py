"""Inputs of the benchmarks: the same on every commit and machine."""

import numpy as np
from numpy.typing import NDArray


def gradients(numel: int, steps: int) -> list[NDArray[np.float32]]:
    """Return ``steps`` tensors with the heavy tails of real gradients: Student-t(3), seeded."""
    generator = np.random.default_rng(20210405)
    return [generator.standard_t(3, numel).astype(np.float32) * 1e-3 for _ in range(steps)]
