"""Minus, zero or plus, by chance."""

import dataclasses
from typing import ClassVar

from gradwire import _validate
from gradwire._part import Part

__all__ = ["Ternary"]


@dataclasses.dataclass(frozen=True, repr=False)
class Ternary(Part):
    """Two bits: minus, zero or plus one magnitude, rounded by chance: unbiased but for clipping.

    The magnitude is the largest of the values, once they are clipped. An entry is sent with it as
    often as its own magnitude is a share of that, so that the mean of what is sent is the clipped
    value. The errors are larger than a residual can take back: use it without a memory.

    Costs a second read of the tensor, where every entry is sent.

    Parameters
    ----------
    clip : float or None
        Clip at so many standard deviations of the values, 2.5 in the paper; None does not clip.
        Values that are all equal are not clipped.
    seed : int
        What the random numbers begin from. They depend also on the name of the tensor, the step and
        the stream of the `gradwire.State`.

    Raises
    ------
    ValueError, TypeError
        A clip that is not finite and above zero, a seed that is not from 0 to 2**63 - 1.

    References
    ----------
    Wen, Xu, Yan, Wu, Wang, Chen, Li, "TernGrad: Ternary Gradients to Reduce Communication in
    Distributed Deep Learning", NeurIPS 2017, section 3.
    """

    clip: float | None = 2.5
    seed: int = 0
    kind: ClassVar[str] = "ternary"

    def __post_init__(self) -> None:
        if self.clip is not None:
            clip = _validate.positive("clip", self.clip)
            if clip == 0.0:
                raise ValueError("clip must be above 0, got 0: None does not clip")
            self._set("clip", clip)
        self._set("seed", _validate.integer("seed", self.seed, low=0))
