"""8-bit floats."""

import dataclasses
from typing import ClassVar, Literal

from gradwire import _validate
from gradwire._part import Part

__all__ = ["Float8"]


@dataclasses.dataclass(frozen=True, repr=False)
class Float8(Part):
    """8 bits: a floating-point number of the Open Compute Project's formats, times a block's scale.

    The scale is the smallest power of two that brings the largest magnitude of a block into the
    range of the codes: products by it are exact. What exceeds the largest code all the same
    (unscaled values, and magnitudes within an eighth of the largest float32) becomes that code:
    neither infinity nor NaN is ever written. Frames are decoded to float32 before they are added,
    so that a sum over any number of ranks rounds as float32 does.

    One read of the values to find the scales, while they are in the cache.

    Parameters
    ----------
    format : {"e4m3", "e5m2"}
        Four bits of exponent and three of mantissa, from 2**-9 to 448 times the scale; or five and
        two, from 2**-16 to 57344 times the scale.
    rounding : {"nearest", "stochastic"}
        To the nearest code, ties to even; or to one of the two neighbours by chance, so that the
        mean is the value. The latter needs a state, which says what is drawn.
    block : int, optional
        Entries that share a scale, at least 1. Each scale takes four bytes of the frame. With None
        values are rounded as they are, without scales.
    seed : int
        What the random numbers of stochastic rounding begin from, 0 to 2**64 - 1.

    Raises
    ------
    ValueError, TypeError
        An unknown format or rounding, a block or a seed out of range.

    References
    ----------
    Micikevicius et al., "FP8 Formats for Deep Learning", arXiv 2022.

    Wang, Choi, Brand, Chen, Gopalakrishnan, "Training Deep Neural Networks with 8-bit Floating
    Point Numbers", NeurIPS 2018: the 1-5-2 format (E5M2) for gradients, and stochastic rounding.

    Rouhani et al., "Microscaling Data Formats for Deep Learning", arXiv 2023, section 3.
    """

    format: Literal["e4m3", "e5m2"] = "e4m3"
    rounding: Literal["nearest", "stochastic"] = "nearest"
    block: int | None = 256
    seed: int = 0
    kind: ClassVar[str] = "float8"

    def __post_init__(self) -> None:
        _validate.choice("format", self.format, ("e4m3", "e5m2"))
        _validate.choice("rounding", self.rounding, ("nearest", "stochastic"))
        if self.block is not None:
            self._set("block", _validate.integer("block", self.block, low=1, high=2**32 - 1))
        self._set("seed", _validate.integer("seed", self.seed, low=0, high=2**64 - 1))
