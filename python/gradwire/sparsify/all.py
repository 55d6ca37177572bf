"""Every entry."""

import dataclasses
from typing import ClassVar

from gradwire._part import Part

__all__ = ["All"]


@dataclasses.dataclass(frozen=True, repr=False)
class All(Part):
    """Send every entry. No positions are sent."""

    kind: ClassVar[str] = "all"
