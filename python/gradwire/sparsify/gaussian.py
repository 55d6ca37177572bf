"""A threshold from a normal distribution (Gaussian-k)."""

import dataclasses
from typing import ClassVar

from gradwire import _validate
from gradwire.sparsify.base import Sparsifier

__all__ = ["Gaussian"]

_MAX_ROUNDS = 64


@dataclasses.dataclass(frozen=True, repr=False)
class Gaussian(Sparsifier):
    """Select entries whose magnitude is above a threshold from a normal distribution (Gaussian-k).

    The threshold is the mean of the values plus the number of standard deviations that a fraction
    k / n of a normal distribution exceeds on both sides. If fewer than 2/3 k or more than 4/3 k
    entries are above it, it is halved or raised by a half, and the entries are counted again. The
    corrections are coarse: with error feedback at a ratio of 0.01 they send 3.6 k entries on
    average on a Laplace distribution, and 4.9 k on a normal one. `band` bounds that; `SID` and
    `TopK` are more accurate. If no entry is above the final threshold, the k largest are sent.

    The default of two corrections follows `GaussianCompressor` in the authors' code
    (hclhkbu/GaussianK-SGD, ``compression.py``): its loop corrects three times, but sends what it
    counted before the third correction.

    A steady step reads the n values once.

    Parameters
    ----------
    ratio : float
        Fraction of entries to send, 0 < ratio <= 1.
    rounds : int
        Maximum number of corrections, 0 to 64. The authors' code has two that take effect.
    band : (float, float) or None
        Guaranteed bounds on achieved count / target count, 0 <= low <= 1 <= high; outside them
        exactly the target is selected. None accepts whatever the last threshold selects, as
        published.

    References
    ----------
    Shi, Chu, Cheung, See, "Understanding Top-k Sparsification in Distributed Deep Learning",
    arXiv 1911.08772, 2019, section 3.3.
    """

    ratio: float
    _: dataclasses.KW_ONLY
    rounds: int = 2
    band: tuple[float, float] | None = None
    kind: ClassVar[str] = "gaussian"
    selects: ClassVar[bool] = True
    shared: ClassVar[bool] = False
    magnitude: ClassVar[str | None] = None

    def __post_init__(self) -> None:
        self._set("ratio", _validate.unit_interval("ratio", self.ratio))
        self._set("rounds", _validate.integer("rounds", self.rounds, low=0, high=_MAX_ROUNDS))
        if self.band is not None:
            self._set("band", _validate.band("band", self.band))
