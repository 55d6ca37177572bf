"""SIDCo: thresholds from sparsity-inducing distributions."""

import dataclasses
from typing import ClassVar, Literal

from gradwire import _validate
from gradwire.sparsify.base import Sparsifier

__all__ = ["SID"]


_MAX_STAGES = 64


@dataclasses.dataclass(frozen=True, repr=False)
class SID(Sparsifier):
    """A threshold from fitted sparsity-inducing distributions (SIDCo).

    The distribution of magnitudes is fitted in stages, each to the entries that exceeded the
    threshold of the stage before (peaks over threshold). No selection over all n entries is needed.

    If the number of entries above the fitted threshold is outside the band, the step selects
    exactly the target number instead. If that happens in most steps, the following steps skip the
    fit and select exactly; the fit is tried again after 64 steps, later after up to 1024.

    Parameters
    ----------
    ratio : float
        Fraction of entries to send, 0 < ratio <= 1.
    distribution : {"pareto", "exponential", "gamma"}
        Distribution of the magnitudes: generalized Pareto at every stage (SIDCo-P in the paper),
        exponential at every stage (SIDCo-E), or gamma in the first stage and generalized Pareto in
        the later ones (SIDCo-GP).
    stages : {"adaptive", "paper", "tracking"} or int
        How the number of stages is chosen. ``"adaptive"``: a controller per tensor corrects the
        stages towards the target. ``"tracking"``: the same, but only the tail above a bound kept
        from step to step is fitted. ``"paper"``: the published rule, which can get stuck on heavy
        tails; it includes exact zeros in the fit, the others leave them out. An integer, 1 to 64:
        always that many stages.
    band : (float, float) or None
        Guaranteed bounds on achieved count / target count, 0 <= low <= 1 <= high. None accepts
        whatever the fitted threshold selects, as published.
    first_ratio : float
        Fraction that the first stage keeps, 0 < first_ratio < 1.

    Notes
    -----
    ``stages="paper", band=None`` follows the classes with error compensation in the authors' code
    (sands-lab/SIDCo, ``compression.py``, ``--stages -1``). ``docs/sidco.md`` lists what differs.

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
    selects: ClassVar[bool] = True
    shared: ClassVar[bool] = False
    magnitude: ClassVar[str | None] = None

    def __post_init__(self) -> None:
        self._set("ratio", _validate.unit_interval("ratio", self.ratio))
        _validate.choice("distribution", self.distribution, ("pareto", "exponential", "gamma"))
        if isinstance(self.stages, str):
            _validate.choice("stages", self.stages, ("adaptive", "paper", "tracking"))
        else:
            self._set("stages", _validate.integer("stages", self.stages, low=1, high=_MAX_STAGES))
        if self.band is not None:
            self._set("band", _validate.band("band", self.band))
        first = _validate.unit_interval("first_ratio", self.first_ratio)
        if first == 1.0:
            raise ValueError("first_ratio must be less than 1, got 1.0")
        self._set("first_ratio", first)
