"""Every entry."""

import dataclasses
from typing import ClassVar

from gradwire.sparsify.base import Sparsifier

__all__ = ["All"]


@dataclasses.dataclass(frozen=True, repr=False)
class All(Sparsifier):
    """Send every entry. No positions are sent."""

    kind: ClassVar[str] = "all"
    selects: ClassVar[bool] = False
    shared: ClassVar[bool] = True
    magnitude: ClassVar[str | None] = None

    def count(self, numel: int) -> int:
        """Return the number of entries that every rank sends: all."""
        return numel
