"""Minus, zero or plus, rounded stochastically."""

import dataclasses
from typing import ClassVar

from gradwire import _validate
from gradwire.quantize.base import Quantizer

__all__ = ["Ternary"]


@dataclasses.dataclass(frozen=True, repr=False)
class Ternary(Quantizer):
    """2 bits: zero or plus or minus one magnitude, rounded stochastically.

    The magnitude M is the largest magnitude after clipping. An entry of magnitude m becomes M with
    probability m / M and zero otherwise, so rounding is unbiased for the clipped values. The error
    is larger than a memory can feed back, and a codec with both is refused.

    Costs a second read of the tensor if every entry is sent.

    Parameters
    ----------
    clip : float or None
        Clip at this many standard deviations of the values; 2.5 in the paper, None for no
        clipping. Values that are all equal are not clipped.
    seed : int
        Seed of the random numbers, which also depend on the name of the tensor, the step and the
        stream of the `gradwire.State`.

    Raises
    ------
    ValueError, TypeError
        A clip that is not finite and greater than 0, or a seed outside 0 to 2**63 - 1.

    References
    ----------
    Wen, Xu, Yan, Wu, Wang, Chen, Li, "TernGrad: Ternary Gradients to Reduce Communication in
    Distributed Deep Learning", NeurIPS 2017, section 3.
    """

    clip: float | None = 2.5
    seed: int = 0
    kind: ClassVar[str] = "ternary"
    summed_as: ClassVar[str | None] = None
    contracts: ClassVar[bool] = False  # of entries well below M the error is larger than they are
    needs_memory: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.clip is not None:
            clip = _validate.positive("clip", self.clip)
            if clip == 0.0:
                raise ValueError("clip must be greater than 0, got 0: pass None for no clipping")
            self._set("clip", clip)
        self._set("seed", _validate.integer("seed", self.seed, low=0))

    @property
    def _contracting(self) -> str:
        return 'use Uniform(3, norm="max")'
