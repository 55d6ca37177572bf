"""Top-k above a sampled threshold (DGC)."""

import dataclasses
from typing import ClassVar

from gradwire import _validate
from gradwire.sparsify.base import Sparsifier

__all__ = ["SampledTopK"]


@dataclasses.dataclass(frozen=True, repr=False)
class SampledTopK(Sparsifier):
    """Select at most k entries, at or above a threshold estimated from a sample (DGC).

    The threshold is the magnitude that a fraction k / n of the sample exceeds. If fewer than
    ``lower * k`` entries reach it, it is lowered, up to ten times. If more than k reach it, the
    largest k are sent. The authors' code keeps the first k by position instead, which starves the
    end of the tensor.

    A steady step reads the n values once, plus the sample.

    Parameters
    ----------
    ratio : float
        k = ceil(ratio * n), 0 < ratio <= 1.
    sample_ratio : float
        Fraction of entries to sample, 0 < sample_ratio <= 1. At least 2 / ratio are sampled.
    strided : bool
        Sample with an odd stride from a random start. False samples with replacement.
    resample : bool
        If far too many entries reach the threshold, select among them at once ("hierarchical").
        False raises the threshold first. At most k are sent in either case.
    upper : float
        ``upper * k`` entries and more are far too many if ``resample`` is off; the threshold is
        then multiplied by ``upper``. Greater than 1.
    lower : float
        Fewer than ``lower * k`` entries are too few; the threshold is then multiplied by
        ``lower``. Between 0 and 1.
    seed : int
        Seed of the sample, which also depends on the name of the tensor and the step.

    References
    ----------
    Lin, Han, Mao, Wang, Dally, "Deep Gradient Compression: Reducing the Communication Bandwidth for
    Distributed Training", ICLR 2018, section 5; parameters of the authors' code.
    """

    ratio: float
    _: dataclasses.KW_ONLY
    sample_ratio: float = 0.01
    strided: bool = True
    resample: bool = True
    upper: float = 1.3
    lower: float = 0.8
    seed: int = 0
    kind: ClassVar[str] = "sampled_topk"
    selects: ClassVar[bool] = True
    shared: ClassVar[bool] = False
    magnitude: ClassVar[str | None] = None

    def __post_init__(self) -> None:
        self._set("ratio", _validate.unit_interval("ratio", self.ratio))
        self._set("sample_ratio", _validate.unit_interval("sample_ratio", self.sample_ratio))
        _validate.boolean("strided", self.strided)
        _validate.boolean("resample", self.resample)
        upper = _validate.positive("upper", self.upper)
        if upper <= 1.0:
            raise ValueError(f"upper must be greater than 1, got {self.upper!r}")
        lower = _validate.unit_interval("lower", self.lower)
        if lower == 1.0:
            raise ValueError(f"lower must be less than 1, got {self.lower!r}")
        self._set("upper", upper)
        self._set("lower", lower)
        self._set("seed", _validate.integer("seed", self.seed, low=0))
