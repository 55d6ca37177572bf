"""Sparsifiers: which entries go onto the wire.

None of them ever sends an exact zero, and ties go to the lower index. For a tensor of n entries
each costs two reads of n, plus work on the survivors; with `gradwire.memory.Residual` one write of
n comes on top.
"""

import dataclasses
from typing import ClassVar, Literal

from gradwire import _validate
from gradwire._part import Part

__all__ = ["SID", "All", "Sparsifier", "Threshold", "TopK"]


@dataclasses.dataclass(frozen=True, repr=False)
class All(Part):
    """Every entry goes; positions cost nothing."""

    kind: ClassVar[str] = "all"


@dataclasses.dataclass(frozen=True, repr=False)
class Threshold(Part):
    """Entries whose magnitude is strictly above a fixed threshold.

    Parameters
    ----------
    threshold : float
        In units of the tensor, finite and >= 0; rounded to float32. 0 sends all non-zeros.
    """

    threshold: float
    kind: ClassVar[str] = "threshold"

    def __post_init__(self) -> None:
        value = _validate.positive("threshold", self.threshold)
        if value > _FLOAT32_MAX:
            raise ValueError(f"threshold must fit a float32, got {self.threshold!r}")
        self._set("threshold", value)


@dataclasses.dataclass(frozen=True, repr=False, kw_only=True)
class TopK(Part):
    """Exactly the k entries of the largest magnitude, by radix selection on the float bits.

    Fewer go where the tensor has fewer non-zeros. Give one of the two:

    Parameters
    ----------
    ratio : float, optional
        k = max(1, floor(ratio * n)), 0 < ratio <= 1.
    k : int, optional
        How many entries, at least 1; a tensor of fewer entries sends all of them.
    """

    ratio: float | None = None
    k: int | None = None
    kind: ClassVar[str] = "topk"

    def __post_init__(self) -> None:
        if (self.ratio is None) == (self.k is None):
            raise TypeError(
                f"TopK takes either ratio= or k=, got ratio={self.ratio!r} and k={self.k!r}"
            )
        if self.ratio is not None:
            self._set("ratio", _validate.unit_interval("ratio", self.ratio))
        if self.k is not None:
            self._set("k", _validate.integer("k", self.k, low=1, high=_validate.MAX_NUMEL))


@dataclasses.dataclass(frozen=True, repr=False)
class SID(Part):
    """A threshold from fitted sparsity-inducing distributions (SIDCo).

    Magnitudes are fitted in stages, each on what exceeded the threshold of the one before
    (peaks over threshold), so that no selection over all n is needed.

    Parameters
    ----------
    ratio : float
        Target of selected entries over n, 0 < ratio <= 1.
    distribution : {"pareto", "exponential", "gamma"}
        Law of the magnitudes: generalized Pareto at every stage (the paper's SIDCo-P), exponential
        at every stage (SIDCo-E), or gamma first and generalized Pareto after (SIDCo-GP).
    stages : {"adaptive", "paper", "tracking"} or int
        Stages that aim at the target, with a controller for each tensor; the paper's controller
        (which may stay stuck on heavy tails); or a fixed number of 1 to 64.
    band : (float, float) or None
        Achieved over target count that is promised, 0 <= low <= 1 <= high: outside of it exactly
        the target is selected. None takes what the fitted threshold gives, as published.
    first_ratio : float
        What the first stage keeps, 0 < first_ratio < 1.

    References
    ----------
    Abdelmoniem, Elzanaty, Alouini, Canini, "An Efficient Statistical-based Gradient Compression
    Technique for Distributed Training Systems", MLSys 2021, section 2.
    """

    ratio: float
    _: dataclasses.KW_ONLY
    distribution: Literal["pareto", "exponential", "gamma"] = "pareto"
    stages: Literal["adaptive", "paper", "tracking"] | int = "adaptive"
    band: tuple[float, float] | None = (0.8, 1.25)
    first_ratio: float = 0.25
    kind: ClassVar[str] = "sid"

    def __post_init__(self) -> None:
        self._set("ratio", _validate.unit_interval("ratio", self.ratio))
        _validate.choice("distribution", self.distribution, ("pareto", "exponential", "gamma"))
        if isinstance(self.stages, str):
            _validate.choice("stages", self.stages, ("adaptive", "paper", "tracking"))
        else:
            self._set("stages", _validate.integer("stages", self.stages, low=1, high=_MAX_STAGES))
        if self.band is not None:
            self._set("band", _band(self.band))
        first = _validate.unit_interval("first_ratio", self.first_ratio)
        if first == 1.0:
            raise ValueError("first_ratio must be less than 1, got 1.0")
        self._set("first_ratio", first)


Sparsifier = All | Threshold | TopK | SID
"""Any of the sparsifiers."""

_MAX_STAGES = 64
_FLOAT32_MAX = 3.4028234663852886e38


def _band(value: object) -> tuple[float, float]:
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise TypeError(f"band must be a pair (low, high) or None, got {value!r}")
    low, high = (_validate.positive(f"band[{i}]", bound) for i, bound in enumerate(value))
    if not low <= 1.0 <= high:
        raise ValueError(f"band must be (low, high) with 0 <= low <= 1 <= high, got {value!r}")
    return low, high
