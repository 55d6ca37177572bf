"""How many positions the selections of many ranks have in common."""

import dataclasses
import math

from gradwire import _validate

__all__ = ["Support"]


@dataclasses.dataclass(frozen=True)
class Support:
    """Overlap of what ranks select: how many positions any of them has selected.

    Ranks train the same model on other data, so that they would rather select the same entries. An
    entry has a probability p to be selected by a rank, in the model a Beta(a, b) variable whose
    mean is the density d. With ``s = a + b``, its concentration, the share of the entries that at
    least one of N ranks has selected is::

        1 - Γ(b + N) Γ(s) / (Γ(b) Γ(s + N)),    b = (1 - d) s

    A large s makes ranks independent; with s near 0 all select the same.

    Parameters
    ----------
    scale, exponent : float
        ``s = scale * d ** exponent``. The defaults are fitted to gradients of up to 64 simulated
        ranks; docs/cost.md has the errors.
    """

    scale: float = 0.82
    exponent: float = -0.63

    def __post_init__(self) -> None:
        if not _validate.positive("scale", self.scale) > 0.0:
            raise ValueError(f"scale must be above 0, got {self.scale!r}")
        _validate.real("exponent", self.exponent)

    def union(self, density: float, ranks: int) -> float:
        """Return the share of positions that at least one rank has selected.

        Parameters
        ----------
        density : float
            Share that one rank selects, in (0, 1].
        ranks : int
            Number of ranks, at least 1.

        Returns
        -------
        float
            At least ``density``, at most ``ranks * density`` and 1.
        """
        density = _validate.unit_interval("density", density)
        ranks = _validate.integer("ranks", ranks, low=1)
        if density == 1.0 or ranks == 1:
            return density
        s = self.scale * density**self.exponent
        b = (1.0 - density) * s
        if s > 1e7:  # lgamma would cancel; ranks are independent
            return -math.expm1(ranks * math.log1p(-density))
        missed = math.lgamma(b + ranks) - math.lgamma(b) + math.lgamma(s) - math.lgamma(s + ranks)
        return min(1.0, max(density, -math.expm1(missed)))
