"""Signs, and one magnitude per frame."""

import dataclasses
from typing import ClassVar, Literal

from gradwire import _validate
from gradwire.quantize.base import Quantizer
from gradwire.sparsify.base import Sparsifier

__all__ = ["SignScale"]

_OWN = ("mean", "rms")
"""Scales that follow from the values; the sparsifier provides the others."""


@dataclasses.dataclass(frozen=True, repr=False)
class SignScale(Quantizer):
    """1 bit: the sign. All entries of a frame share one magnitude.

    The quantizer is biased; a codec without a memory issues a warning. Zeros count as positive, and
    the error stays in the residual.

    Costs a second read of the tensor if every entry is sent.

    Parameters
    ----------
    scale : {"mean", "rms", "bin-max", "threshold"}
        The magnitude: the mean of the entries' magnitudes; the root of their mean square; the mean
        of the largest magnitudes of all bins, with `gradwire.sparsify.BinMax`; the threshold, with
        `gradwire.sparsify.Threshold`.

    Raises
    ------
    ValueError, TypeError
        Unknown scale. The codec refuses the last two if its sparsifier has no such magnitude.

    References
    ----------
    Karimireddy, Rebjock, Stich, Jaggi, "Error Feedback Fixes SignSGD and other Gradient Compression
    Schemes", ICML 2019: ``"mean"``.

    Tang et al., "1-bit Adam: Communication Efficient Large-Scale Training with Adam's Convergence
    Speed", ICML 2021: ``"rms"``.

    Chen et al., "AdaComp: Adaptive Residual Gradient Compression for Data-Parallel Distributed
    Training", AAAI 2018: ``"bin-max"``.

    Strom, "Scalable Distributed DNN Training Using Commodity GPU Cloud Computing", Interspeech
    2015: ``"threshold"``.
    """

    scale: Literal["mean", "rms", "bin-max", "threshold"] = "mean"
    kind: ClassVar[str] = "sign_scale"
    summed_as: ClassVar[str | None] = None
    contracts: ClassVar[bool] = True
    needs_memory: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _validate.choice("scale", self.scale, ("mean", "rms", "bin-max", "threshold"))

    def check(self, sparsify: Sparsifier) -> None:
        """Refuse sparsifiers without the magnitude of this scale."""
        if self.scale not in _OWN and self.scale != sparsify.magnitude:
            raise ValueError(
                f"SignScale(scale={self.scale!r}) takes its magnitude from the sparsifier, but "
                f"{type(sparsify).__name__} has none; use scale='mean'"
            )
