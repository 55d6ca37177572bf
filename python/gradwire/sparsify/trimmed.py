"""Thresholds between the mean and the largest magnitude (RedSync)."""

import dataclasses
from typing import ClassVar, Literal

from gradwire import _validate
from gradwire.sparsify.base import Sparsifier

__all__ = ["Trimmed"]


@dataclasses.dataclass(frozen=True, repr=False)
class Trimmed(Sparsifier):
    """Select entries above a threshold between the mean and the largest magnitude (RedSync).

    Thresholds have the form ``mean + r * (max - mean)``. ``"trim"`` lowers r from 1 until at least
    k entries are above the threshold and selects exactly k of them: the same entries as `TopK`.
    ``"search"`` bisects r until k to 2 k entries are above; if it ends without such a threshold,
    the k largest are sent. It tries three values of r, and mostly ends that way: in nine of ten
    steps or more on Student's t(3), and in a fifth to three quarters of the steps on normal and
    Laplace distributions with error feedback. (The search in the authors' code moves the wrong
    bound when too few entries are above.)

    A steady step reads the n values once.

    Parameters
    ----------
    ratio : float
        k = max(1, floor(ratio * n)), 0 < ratio <= 1.
    method : {"trim", "search"}
        How to find the threshold.
    step : float
        Decrement of r for ``"trim"``, and the width of the interval at which ``"search"`` ends;
        0 < step < 1.

    References
    ----------
    Fang, Fu, Yang, Hsieh, "RedSync: Reducing Synchronization Bandwidth for Distributed Deep
    Learning Training System", JPDC 2019, section 5.1.
    """

    ratio: float
    _: dataclasses.KW_ONLY
    method: Literal["trim", "search"] = "trim"
    step: float = 0.2
    kind: ClassVar[str] = "trimmed"
    selects: ClassVar[bool] = True
    shared: ClassVar[bool] = False
    magnitude: ClassVar[str | None] = None

    def __post_init__(self) -> None:
        self._set("ratio", _validate.unit_interval("ratio", self.ratio))
        _validate.choice("method", self.method, ("trim", "search"))
        step = _validate.unit_interval("step", self.step)
        if step == 1.0:
            raise ValueError(f"step must be less than 1, got {self.step!r}")
        self._set("step", step)
