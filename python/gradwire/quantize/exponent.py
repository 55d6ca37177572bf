"""Natural compression: a sign and a power of two."""

import dataclasses
from typing import ClassVar

from gradwire import _validate
from gradwire._part import Part

__all__ = ["Exponent"]


@dataclasses.dataclass(frozen=True, repr=False)
class Exponent(Part):
    """8 bits: a sign and a power of two, one of the two around the value, by chance.

    The mean is the value, and the variance at most an eighth of its square, so that it trains
    without a residual. The 127 powers of a block of 2048 entries end at the first that is not below
    its largest magnitude; what is below the smallest becomes that or zero, by chance too. Zeros are
    exact. Only magnitudes above 2**127, half of the largest float32, lose their mean: they become
    2**127.

    Needs a state, which says what is drawn. One read of the values to find the powers, while they
    are in the cache.

    Parameters
    ----------
    seed : int
        What the random numbers begin from, 0 to 2**64 - 1.

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

    def __post_init__(self) -> None:
        self._set("seed", _validate.integer("seed", self.seed, low=0, high=2**64 - 1))
