"""No memory."""

import dataclasses
from typing import ClassVar

from gradwire.memory.base import Memory

__all__ = ["NoMemory"]


@dataclasses.dataclass(frozen=True, repr=False)
class NoMemory(Memory):
    """Drop what is not sent."""

    kind: ClassVar[str] = "none"
    keeps: ClassVar[bool] = False
    corrects: ClassVar[bool] = False
    updates: ClassVar[bool] = False
    undoable: ClassVar[bool] = True
