"""The largest entries of each bin, by AdaComp's test."""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar, Self

from gradwire import _validate
from gradwire.sparsify.base import Sparsifier

__all__ = ["BinMax"]

_CONVOLUTION, _OTHER = 50, 500


@dataclasses.dataclass(frozen=True, repr=False)
class BinMax(Sparsifier):
    """Select the entries of each bin that pass AdaComp's soft threshold.

    Let G be the residual plus the gradient dW. An entry is selected if the magnitude of
    ``G + (soft - 1) * dW`` is at least the largest magnitude of G in its bin. The number of
    selected entries depends on the data; a bin of zeros sends nothing. Without a memory, G is dW.

    The magnitude for `gradwire.quantize.SignScale` is the mean, over all bins, of the largest
    magnitude of G in each bin.

    A step reads the n values once; each bin is read a second time from the cache.

    Parameters
    ----------
    bin : int or None
        Entries per bin; the last bin of a tensor may have fewer. None means 50 for convolution
        kernels (three dimensions or more), and 500 for all other tensors or if the shape is
        unknown.
    soft : float
        Weight of dW in the test, at least 1. The paper uses 2.

    References
    ----------
    Chen, Choi, Brand, Agrawal, Zhang, Gopalakrishnan, "AdaComp : Adaptive Residual Gradient
    Compression for Data-Parallel Distributed Training", AAAI 2018, section 3.
    """

    bin: int | None = None
    _: dataclasses.KW_ONLY
    soft: float = 2.0
    kind: ClassVar[str] = "bin_max"
    selects: ClassVar[bool] = True
    shared: ClassVar[bool] = False
    magnitude: ClassVar[str | None] = "bin-max"

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
