"""Natural compression: a sign and a power of two."""

import dataclasses
from typing import ClassVar

from gradwire import _validate
from gradwire.quantize.base import Quantizer

__all__ = ["Exponent"]


@dataclasses.dataclass(frozen=True, repr=False)
class Exponent(Quantizer):
    """8 bits: a sign and a power of two, randomly one of the two nearest to the value.

    The rounding is unbiased, with a variance of at most an eighth of the squared value, so training
    works without a residual. Each block of 2048 entries has 127 powers of two; the largest of them
    is the smallest one that is not below the largest magnitude of the block. A magnitude below the
    smallest power is randomly rounded to it or to zero. Zeros are exact. Only magnitudes above
    2**127, half of the largest float32, are biased: they become 2**127.

    Needs a state, which seeds the random numbers. Costs one more read of the values, from the
    cache.

    Parameters
    ----------
    seed : int
        Seed of the random numbers, 0 to 2**64 - 1.

    Raises
    ------
    ValueError, TypeError
        A seed out of range.

    References
    ----------
    Horváth, Ho, Horváth, Sahu, Canini, Richtárik, "Natural Compression for Distributed Deep
    Learning", MSML 2022, definition 1 and theorem 2.
    """

    seed: int = 0
    kind: ClassVar[str] = "exponent"
    summed_as: ClassVar[str | None] = None
    contracts: ClassVar[bool] = True
    needs_memory: ClassVar[bool] = False

    def __post_init__(self) -> None:
        self._set("seed", _validate.integer("seed", self.seed, low=0, high=2**64 - 1))
