"""No memory."""

import dataclasses
from typing import ClassVar

from gradwire._part import Part

__all__ = ["NoMemory"]


@dataclasses.dataclass(frozen=True, repr=False)
class NoMemory(Part):
    """Drop what is not sent."""

    kind: ClassVar[str] = "none"
