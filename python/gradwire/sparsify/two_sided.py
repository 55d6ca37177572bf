"""One threshold for each sign (Dryden et al.)."""

import dataclasses
from typing import ClassVar

from gradwire import _validate
from gradwire.sparsify.base import Sparsifier

__all__ = ["TwoSided"]

_MAX_SAMPLE = 2**24


@dataclasses.dataclass(frozen=True, repr=False)
class TwoSided(Sparsifier):
    """Select entries at or beyond a positive and a negative threshold (Dryden et al.).

    The thresholds are estimated from a sample so that about one entry in ``proportion`` is
    selected: each is the smallest magnitude of its sign among the sample's largest entries. At
    most 4 n / proportion entries are sent, the largest, however far off the sample is.

    A steady step reads the n values once.

    Parameters
    ----------
    proportion : float
        Send about one entry in this many, at least 1.
    sample : int or None
        Number of entries to sample, with replacement, from a tensor that has more; 1 to 2**24.
        None computes the exact thresholds.
    seed : int
        Seed of the sample, which also depends on the name of the tensor and the step.

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
    selects: ClassVar[bool] = True
    shared: ClassVar[bool] = False
    magnitude: ClassVar[str | None] = None

    def __post_init__(self) -> None:
        proportion = _validate.positive("proportion", self.proportion)
        if proportion < 1.0:
            raise ValueError(f"proportion must be at least 1, got {self.proportion!r}")
        self._set("proportion", proportion)
        if self.sample is not None:
            sample = _validate.integer("sample", self.sample, low=1, high=_MAX_SAMPLE)
            self._set("sample", sample)
        self._set("seed", _validate.integer("seed", self.seed, low=0))
