"""Exact top-k."""

import dataclasses
from typing import ClassVar

from gradwire import _validate
from gradwire.sparsify.base import Sparsifier

__all__ = ["TopK"]


@dataclasses.dataclass(frozen=True, repr=False, kw_only=True)
class TopK(Sparsifier):
    """Select exactly the k entries of largest magnitude, by radix selection on the float bits.

    A tensor with fewer than k non-zeros sends those. Pass either ``ratio`` or ``k``.

    Parameters
    ----------
    ratio : float, optional
        k = max(1, floor(ratio * n)), 0 < ratio <= 1.
    k : int, optional
        Number of entries, at least 1. A tensor with fewer entries sends all of them.
    """

    ratio: float | None = None
    k: int | None = None
    kind: ClassVar[str] = "topk"
    selects: ClassVar[bool] = True
    shared: ClassVar[bool] = False
    magnitude: ClassVar[str | None] = None

    def __post_init__(self) -> None:
        if (self.ratio is None) == (self.k is None):
            raise TypeError(
                f"TopK takes either ratio= or k=, got ratio={self.ratio!r} and k={self.k!r}"
            )
        if self.ratio is not None:
            self._set("ratio", _validate.unit_interval("ratio", self.ratio))
        if self.k is not None:
            self._set("k", _validate.integer("k", self.k, low=1, high=_validate.MAX_NUMEL))
