"""Values as one of a few levels: a uniform grid, powers of two, or fitted magnitudes."""

import dataclasses
from typing import ClassVar, Literal

from gradwire import _validate
from gradwire.quantize.base import Quantizer


@dataclasses.dataclass(frozen=True, repr=False)
class Uniform(Quantizer):
    """A sign and a level between zero and the norm of the block, rounded stochastically.

    The rounding is unbiased, so errors average out over ranks and steps. They are large: a memory
    can feed them back only if the quantizer contracts; a codec with another one is refused. With
    ``norm="max"`` it contracts from 3 bits on, or in blocks of up to 8 entries. With ``norm="l2"``
    it does in blocks of fewer than 4, 36, 196, 900, 3844, 15876 and 64516 entries for 2 to 8 bits.

    Costs one more read of the values, from the cache. Blocks of zeros decode to zeros.

    Parameters
    ----------
    bits : int
        Bits per entry including the sign, 2 to 8: ``2 ** (bits - 1) - 1`` levels above zero.
    block : int
        Entries per norm, 1 to 2**32 - 1. Each norm takes four bytes.
    norm : {"l2", "max"}
        Upper end of the grid: the Euclidean norm of the block, as in the paper, or its largest
        magnitude, which gives a finer grid.
    seed : int
        Seed of the random numbers, 0 to 2**63 - 1. They also depend on the name of the tensor, the
        step and the stream of the `gradwire.State`.

    References
    ----------
    Alistarh, Grubic, Li, Tomioka, Vojnovic, "QSGD: Communication-Efficient SGD via Gradient
    Quantization and Encoding", NeurIPS 2017, section 3.
    """

    bits: int = 4
    block: int = 512
    norm: Literal["l2", "max"] = "l2"
    seed: int = 0
    kind: ClassVar[str] = "uniform"
    summed_as: ClassVar[str | None] = None
    needs_memory: ClassVar[bool] = False

    def __post_init__(self) -> None:
        self._check("bits", _validate.integer, low=2, high=8)
        self._check("block", _validate.integer, low=1, high=_validate.MAX_NUMEL)
        _validate.choice("norm", self.norm, ("l2", "max"))
        self._check("seed", _validate.integer, low=0)

    @property
    def contracts(self) -> bool:
        """Whether the rounding error is smaller than the values."""
        # In squares of the distance of two levels, an entry has a variance of p (1 - p), p from the
        # lower one to the upper. That of a block is largest if p is 1/2 in all of it: with "l2"
        # block / (4 levels^2) of the squared norm, as long as that is below 1 (the paper's bound is
        # four times as much). With "max" no error is above the largest magnitude over the levels;
        # with one level the worst block is one magnitude among small ones, and has
        # (sqrt(block) - 1) / 2.
        levels: int = 2 ** (self.bits - 1) - 1
        return self.block < 4 * levels**2 if self.norm == "l2" else levels > 1 or self.block < 9

    @property
    def _contracting(self) -> str:
        bits = max(self.bits, 3)
        return f'use Uniform({bits}, {self.block}, norm="max")'


@dataclasses.dataclass(frozen=True, repr=False)
class Exponent(Quantizer):
    """8 bits: a sign and a power of two, randomly one of the two nearest to the value.

    The rounding is unbiased, with a variance of at most an eighth of the squared value, so training
    works without a residual. Each block of 2048 entries has 127 powers of two; the largest of them
    is the smallest one that is not below the largest magnitude of the block. A magnitude below the
    smallest power is randomly rounded to it or to zero. Zeros are exact. Only magnitudes above
    2**127, half of the largest float32, are biased: they become 2**127.

    Needs a state for the random numbers. Costs one more read of the values, from the cache.

    Parameters
    ----------
    seed : int
        Seed of the random numbers, 0 to 2**64 - 1.

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
        self._check("seed", _validate.integer, low=0, high=2**64 - 1)


@dataclasses.dataclass(frozen=True, repr=False)
class Codebook(Quantizer):
    """A sign and one of ``2**(bits - 1)`` magnitudes, fitted for the least squared error.

    The magnitudes are fitted to each block of 4096 entries and sent as float32. With the same
    number of bits, the error of quantizers with bins around the mean is larger by half or more.

    Meant for selected entries, which lie on both sides of zero but not near it: the fit costs
    several nanoseconds per entry, more than any other quantizer.

    Parameters
    ----------
    bits : int
        Bits per entry including the sign, 1 to 4.

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
        self._check("bits", _validate.integer, low=1, high=4)
