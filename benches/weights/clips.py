"""SAWB's clip, which follows from two moments, beside the best one of a search."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwire import weights
from gradwire.quantize import Affine

NUMEL, SEED = 65_536, 20260101
BITS = (2, 3, 4)
TRIED = 300
ALLOWED = 1.02
"""Of the best clip's error."""

Array = NDArray[np.float32]


def laws() -> dict[str, Array]:
    """Return samples of each law."""
    random = np.random.default_rng(SEED)
    drawn = {
        "normal": random.standard_normal(NUMEL),
        "Laplace": random.laplace(size=NUMEL),
        "uniform": random.uniform(-1, 1, NUMEL),
    }
    return {name: each.astype(np.float32) for name, each in drawn.items()}


def error(values: Array, read: Array) -> float:
    """Return the squared error as a part of the squared norm."""
    exact = values.astype(np.float64)
    return float(np.square(read - exact).sum() / np.square(exact).sum())


def best(values: Array, bits: int) -> float:
    """Return the least error of a symmetric grid over many clips up to the largest magnitude."""
    top = float(np.abs(values).max())
    errors = []
    for clip in np.linspace(top / TRIED, top, TRIED):
        step = 2 * clip / (2**bits - 1)
        codes = np.clip(np.rint((values + clip) / step), 0, 2**bits - 1)
        errors.append(error(values, codes * step - clip))
    return min(errors)


def measure() -> list[dict[str, Any]]:
    """Return a row for each law and number of bits."""
    return list(_rows())


def _rows() -> Iterator[dict[str, Any]]:
    for law, values in laws().items():
        for bits in BITS:
            packed = weights.pack(values, Affine(bits, None, "sawb"))
            own, least = error(values, packed.unpack()), best(values, bits)
            yield {"law": law, "bits": bits, "sawb": own, "best": least}
