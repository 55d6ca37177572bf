"""Values as codes of an affine grid, as in packed weights."""

import dataclasses
from typing import ClassVar, Literal

from gradwire import _validate
from gradwire.quantize.base import Quantizer


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

    References
    ----------
    Choi, Venkataramani, Srinivasan, Gopalakrishnan, Wang, Chuang, "Accurate and Efficient 2-bit
    Quantized Neural Networks", MLSys 2019, section 3: ``"sawb"``.
    """

    bits: int = 4
    block: int | None = 64
    fit: Literal["range", "zero", "sawb", "squares"] = "squares"
    rounding: Literal["nearest", "stochastic"] = "nearest"
    seed: int = 0
    kind: ClassVar[str] = "affine"
    summed_as: ClassVar[str | None] = None
    needs_memory: ClassVar[bool] = False

    def __post_init__(self) -> None:
        self._check("bits", _validate.integer, low=1, high=8)
        self._check_given("block", _validate.integer, low=1, high=_validate.MAX_NUMEL)
        _validate.choice("fit", self.fit, ("range", "zero", "sawb", "squares"))
        _validate.choice("rounding", self.rounding, ("nearest", "stochastic"))
        self._check("seed", _validate.integer, low=0, high=2**64 - 1)
        if self.fit == "zero" and self.bits == 1:
            raise ValueError('fit="zero" needs at least 2 bits, got bits=1')
        if self.rounding == "stochastic" and self.fit not in ("range", "zero"):
            raise ValueError(
                'rounding="stochastic" needs fit="range" or "zero", whose grids cover all values, '
                f"got fit={self.fit!r}"
            )

    @property
    def contracts(self) -> bool:
        """Whether the error is smaller than the values."""
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
