"""A few magnitudes, fitted to the values."""

import dataclasses
from typing import ClassVar

from gradwire import _validate
from gradwire.quantize.base import Quantizer

__all__ = ["Codebook"]


@dataclasses.dataclass(frozen=True, repr=False)
class Codebook(Quantizer):
    """A sign and one of ``2**(bits - 1)`` magnitudes, fitted for the least squared error.

    Meant for selected entries, which lie on both sides of zero but not near it. The magnitudes are
    fitted to each block of 4096 entries and sent as float32. With the same number of bits, the
    error of quantizers with bins around the mean is larger by half or more.

    The fit costs several nanoseconds per entry, more than any other quantizer. Use it for a
    selection rather than for every entry.

    Parameters
    ----------
    bits : int
        Bits per entry including the sign, 1 to 4.

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
    summed_as: ClassVar[str | None] = None
    contracts: ClassVar[bool] = True
    needs_memory: ClassVar[bool] = False

    def __post_init__(self) -> None:
        self._set("bits", _validate.integer("bits", self.bits, low=1, high=4))
