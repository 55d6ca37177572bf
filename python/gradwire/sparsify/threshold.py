"""A fixed threshold."""

import dataclasses
from typing import ClassVar

from gradwire import _validate
from gradwire.sparsify.base import Sparsifier

__all__ = ["Threshold"]


_FLOAT32_MAX = 3.4028234663852886e38


@dataclasses.dataclass(frozen=True, repr=False)
class Threshold(Sparsifier):
    """Select the entries whose magnitude is strictly above a fixed threshold.

    Parameters
    ----------
    threshold : float
        In the units of the tensor, finite and >= 0, rounded to float32. 0 sends all non-zeros.
    """

    threshold: float
    kind: ClassVar[str] = "threshold"
    selects: ClassVar[bool] = True
    shared: ClassVar[bool] = False
    magnitude: ClassVar[str | None] = "threshold"

    def __post_init__(self) -> None:
        value = _validate.positive("threshold", self.threshold)
        if value > _FLOAT32_MAX:
            raise ValueError(f"threshold must fit a float32, got {self.threshold!r}")
        self._set("threshold", value)
