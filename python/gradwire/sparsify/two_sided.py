"""A threshold for either sign (Dryden)."""

import dataclasses
from typing import ClassVar

from gradwire import _validate
from gradwire._part import Part

__all__ = ["TwoSided"]

_MAX_SAMPLE = 2**24


@dataclasses.dataclass(frozen=True, repr=False)
class TwoSided(Part):
    """Entries at or beyond a threshold for their sign, of which a sample has one in ``proportion``.

    Both thresholds are for the whole tensor; the smallest entry of each sign among the largest of
    the sample. At most 4 n / proportion entries go, the largest, however far off the sample is.

    A steady step is one read of n.

    Parameters
    ----------
    proportion : float
        One entry in so many is wanted, at least 1.
    sample : int or None
        Entries to draw, with replacement, from a tensor that has more than that; 1 to 2**24. None
        for the exact thresholds.
    seed : int
        What the sample depends on, with the name of the tensor and the step.

    References
    ----------
    Dryden, Jacobs, Moon, Van Essen, "Communication Quantization for Data-Parallel Training of Deep
    Neural Networks", MLHPC 2016, section 3.2.
    """

    proportion: float
    _: dataclasses.KW_ONLY
    sample: int | None = 1024
    seed: int = 0
    kind: ClassVar[str] = "two_sided"

    def __post_init__(self) -> None:
        proportion = _validate.positive("proportion", self.proportion)
        if proportion < 1.0:
            raise ValueError(f"proportion must be at least 1, got {self.proportion!r}")
        self._set("proportion", proportion)
        if self.sample is not None:
            sample = _validate.integer("sample", self.sample, low=1, high=_MAX_SAMPLE)
            self._set("sample", sample)
        self._set("seed", _validate.integer("seed", self.seed, low=0))
