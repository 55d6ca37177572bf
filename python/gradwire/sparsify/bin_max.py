"""The largest of each bin, and those that soon will be (AdaComp)."""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar, Self

from gradwire import _validate
from gradwire._part import Part

__all__ = ["BinMax"]

_CONVOLUTION, _OTHER = 50, 500


@dataclasses.dataclass(frozen=True, repr=False)
class BinMax(Part):
    """Of each bin, the entries that would match its largest with the same gradient once more.

    With G the residual plus the gradient dW, an entry goes if the magnitude of ``G + (soft - 1) *
    dW`` is at least the largest magnitude of G in its bin. How many do is up to the data; bins of
    zeros send nothing. Without a memory, G is dW.

    For `gradwire.quantize.SignScale`, the magnitude is the mean over all bins of their largest one
    of G.

    A step is one read of n, two of each bin in the cache.

    Parameters
    ----------
    bin : int or None
        Entries of a bin; the last one of a tensor may have fewer. None is 50 for convolution
        kernels (three dimensions or more) and 500 for all else, where the shape is known; where it
        is not, 500.
    soft : float
        How often dW counts in the test, at least 1; published with 2.

    References
    ----------
    Chen, Choi, Brand, Agrawal, Zhang, Gopalakrishnan, "AdaComp : Adaptive Residual Gradient
    Compression for Data-Parallel Distributed Training", AAAI 2018, section 3.
    """

    bin: int | None = None
    _: dataclasses.KW_ONLY
    soft: float = 2.0
    kind: ClassVar[str] = "bin_max"

    def __post_init__(self) -> None:
        if self.bin is not None:
            self._set("bin", _validate.integer("bin", self.bin, low=1, high=_validate.MAX_NUMEL))
        soft = _validate.positive("soft", self.soft)
        if soft < 1.0:
            raise ValueError(f"soft must be at least 1, got {self.soft!r}")
        self._set("soft", soft)

    def for_shape(self, shape: Sequence[int]) -> Self:
        """Return the part with the paper's bins for tensors of this shape, if none were set."""
        if self.bin is not None:
            return self
        return dataclasses.replace(self, bin=_CONVOLUTION if len(shape) >= 3 else _OTHER)
