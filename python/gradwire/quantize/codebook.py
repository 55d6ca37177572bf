"""A few magnitudes, chosen to fit the values."""

import dataclasses
from typing import ClassVar

from gradwire import _validate
from gradwire._part import Part

__all__ = ["Codebook"]


@dataclasses.dataclass(frozen=True, repr=False)
class Codebook(Part):
    """A sign and one of ``2**(bits - 1)`` magnitudes, those with the least squared error.

    For selected entries, which lie on both sides of zero and none of them near it. The magnitudes
    are fitted to each block of 4096 entries and are in the frame, as float32; of equal numbers of
    bits, quantizers with bins around the mean err half as much again or more.

    The fit takes some nanoseconds an entry, more than all other quantizers: it suits a selection
    better than every entry.

    Parameters
    ----------
    bits : int
        Of an entry, sign included, 1 to 4.

    Raises
    ------
    ValueError, TypeError
        Bits out of range.

    References
    ----------
    Sarfi, Thérien, Lidin, Belilovsky, "Communication Efficient LLM Pre-training with SparseLoCo",
    arXiv 2025.

    Lloyd, "Least Squares Quantization in PCM", IEEE Transactions on Information Theory 1982.
    """

    bits: int = 2
    kind: ClassVar[str] = "codebook"

    def __post_init__(self) -> None:
        self._set("bits", _validate.integer("bits", self.bits, low=1, high=4))
