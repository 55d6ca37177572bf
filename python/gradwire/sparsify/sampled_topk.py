"""Top-k above a sampled threshold (DGC)."""

import dataclasses
from typing import ClassVar

from gradwire import _validate
from gradwire._part import Part

__all__ = ["SampledTopK"]


@dataclasses.dataclass(frozen=True, repr=False)
class SampledTopK(Part):
    """At most k entries, at or above a threshold taken from a sample (DGC).

    The threshold is one that k / n of the sample exceed. Where fewer than ``lower * k`` entries
    reach it, it is lowered, up to ten times; where more than k do, the largest k of them go. The
    published code keeps the first k by position instead, which starves the end of a tensor.

    A steady step is one read of n; the sample costs a read of its own share of n on top.

    Parameters
    ----------
    ratio : float
        k = ceil(ratio * n), 0 < ratio <= 1.
    sample_ratio : float
        Sampled entries over n, 0 < sample_ratio <= 1; at least 2 / ratio entries are.
    strided : bool
        Sample at an odd stride from a random start, or with replacement.
    resample : bool
        Where far too many reach the threshold, select from them at once ("hierarchical"), or raise
        the threshold first. Either way no more than k go.
    upper : float
        From ``upper * k`` entries on they are far too many, where ``resample`` is off; also what
        the threshold is then multiplied by. More than 1.
    lower : float
        Below ``lower * k`` entries they are too few; also what the threshold is then multiplied
        by. Between 0 and 1.
    seed : int
        What the sample depends on, with the name of the tensor and the step.

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

    def __post_init__(self) -> None:
        self._set("ratio", _validate.unit_interval("ratio", self.ratio))
        self._set("sample_ratio", _validate.unit_interval("sample_ratio", self.sample_ratio))
        _validate.boolean("strided", self.strided)
        _validate.boolean("resample", self.resample)
        upper = _validate.positive("upper", self.upper)
        if upper <= 1.0:
            raise ValueError(f"upper must be more than 1, got {self.upper!r}")
        lower = _validate.unit_interval("lower", self.lower)
        if lower == 1.0:
            raise ValueError(f"lower must be less than 1, got {self.lower!r}")
        self._set("upper", upper)
        self._set("lower", lower)
        self._set("seed", _validate.integer("seed", self.seed, low=0))
