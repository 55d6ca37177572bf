"""Values as one of a few levels: of a grid, powers of two, or fitted magnitudes."""

import dataclasses
from typing import Annotated, ClassVar, Literal

from gradwire import _validate
from gradwire._validate import Bits, Check, Entries, Seed, Seed64
from gradwire.quantize.base import Codes, Quantizer


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

    bits: Annotated[int, Check(_validate.integer, low=2, high=8)] = 4
    block: Entries = 512
    norm: Literal["l2", "max"] = "l2"
    seed: Seed = 0
    kind: ClassVar[str] = "uniform"
    summed_as: ClassVar[str | None] = None
    needs_memory: ClassVar[bool] = False

    @property
    def contracts(self) -> bool:
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
class Exponent(Codes):
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

    seed: Seed64 = 0
    kind: ClassVar[str] = "exponent"


@dataclasses.dataclass(frozen=True, repr=False)
class Codebook(Codes):
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

    bits: Annotated[int, Check(_validate.integer, low=1, high=4)] = 2
    kind: ClassVar[str] = "codebook"


@dataclasses.dataclass(frozen=True, repr=False)
class Affine(Quantizer):
    """1 to 8 bits: ``base + step * code``, with a step and a base for each block of entries.

    Both are float16, four bytes a block, times one power of two for the tensor, which the largest
    magnitude decides; magnitudes above 2**118 saturate. They are rounded before codes are chosen.

    In a codec for gradients it costs one more read of the tensor. Its errors can be larger than the
    values if blocks are long for the number of bits; a memory could not feed such errors back, so a
    codec with both is refused.

    Parameters
    ----------
    bits : int
        Bits per entry, 1 to 8.
    block : int, optional
        Entries that share a step and a base, 1 to 2**32 - 1. None: all of a tensor.
    fit : {"squares", "range", "zero", "sawb"}
        The fit of a block's grid. ``"range"``: equal cells between the minimum and maximum, decoded
        to their centres. ``"squares"``: the one with the least squared error of 16 that shrink that
        range, down to a sixth. ``"zero"``: symmetric, with zero one of the values; at least 2 bits.
        ``"sawb"``: symmetric, up to a clip that follows from the mean square and the mean
        magnitude, meant for whole tensors; from 5 bits on the largest magnitude where that is
        better.
    rounding : {"nearest", "stochastic"}
        To the nearest code, ties to even; or randomly to one of the two neighbours, which needs a
        state to seed the random numbers, and a fit of ``"range"`` (then codes reach from the least
        to the largest value) or ``"zero"``, so that the expected result is the value.
    seed : int
        Seed of stochastic rounding, 0 to 2**64 - 1.

    Raises
    ------
    ValueError
        ``fit`` does not allow these bits, or this rounding.

    References
    ----------
    Choi, Venkataramani, Srinivasan, Gopalakrishnan, Wang, Chuang, "Accurate and Efficient 2-bit
    Quantized Neural Networks", MLSys 2019, section 3: ``"sawb"``.
    """

    bits: Bits = 4
    block: Entries | None = 64
    fit: Literal["range", "zero", "sawb", "squares"] = "squares"
    rounding: Literal["nearest", "stochastic"] = "nearest"
    seed: Seed64 = 0
    kind: ClassVar[str] = "affine"
    summed_as: ClassVar[str | None] = None
    needs_memory: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.require(
            self.fit != "zero" or self.bits > 1, 'fit="zero" needs at least 2 bits, got bits=1'
        )
        _validate.require(
            self.rounding == "nearest" or self.fit in ("range", "zero"),
            'rounding="stochastic" needs fit="range" or "zero", whose grids cover all values, '
            "got fit={!r}",
            self.fit,
        )

    @property
    def contracts(self) -> bool:
        # Nearest to a grid that has zero, nothing is further from its code than from zero. Else an
        # error is half a step at most (rounded randomly, a variance of a quarter of a squared one),
        # and a block may be one magnitude, half of its range, among zeros.
        if self.fit == "zero":
            return self.rounding == "nearest" or self._block < (2 ** (self.bits - 1) - 1) ** 2
        steps: int = 2**self.bits if self.rounding == "nearest" else 2**self.bits - 1
        return self.fit != "sawb" and self._block < steps**2

    @property
    def _block(self) -> int:
        return _validate.MAX_NUMEL if self.block is None else self.block

    @property
    def _contracting(self) -> str:
        return f'use Affine({max(self.bits, 2)}, {self.block}, fit="zero")'
