"""A threshold from a normal law (Gaussian-k)."""

import dataclasses
from typing import ClassVar

from gradwire import _validate
from gradwire._part import Part

__all__ = ["Gaussian"]

_MAX_ROUNDS = 64


@dataclasses.dataclass(frozen=True, repr=False)
class Gaussian(Part):
    """Entries whose magnitude is above a threshold that a normal law gives (Gaussian-k).

    The threshold is the mean of the values plus as many standard deviations as k / n of a normal
    law exceed on both sides. Where fewer than 2/3 k or more than 4/3 k entries are above, it is
    halved or raised by a half, and they are counted again. Heavy tails need that in most steps, and
    what it comes to is then a matter of luck: `SID` and `TopK` have no such trouble. Where it ends
    with no entry at all, the k largest go.

    A steady step is one read of n.

    Parameters
    ----------
    ratio : float
        Target of selected entries over n, 0 < ratio <= 1.
    rounds : int
        How often the threshold may be corrected, 0 to 64.
    band : (float, float) or None
        Achieved over target count that is promised, 0 <= low <= 1 <= high: outside of it exactly
        the target is selected. None takes what the last threshold gives, as published.

    References
    ----------
    Shi, Chu, Cheung, See, "Understanding Top-k Sparsification in Distributed Deep Learning",
    arXiv 1911.08772, 2019, section 3.3.
    """

    ratio: float
    _: dataclasses.KW_ONLY
    rounds: int = 3
    band: tuple[float, float] | None = None
    kind: ClassVar[str] = "gaussian"

    def __post_init__(self) -> None:
        self._set("ratio", _validate.unit_interval("ratio", self.ratio))
        self._set("rounds", _validate.integer("rounds", self.rounds, low=0, high=_MAX_ROUNDS))
        if self.band is not None:
            self._set("band", _validate.band("band", self.band))
