"""What every memory is."""

import dataclasses
from typing import ClassVar

from gradwire._part import Part

__all__ = ["Memory"]


@dataclasses.dataclass(frozen=True, repr=False)
class Memory(Part):
    """Any memory.

    Attributes
    ----------
    keeps : bool
        What is not sent is kept for later.
    corrects : bool
        The optimizer's momentum is applied here, and must not be applied again.
    undoable : bool
        `gradwire.State.rollback` works.
    """

    KINDS: ClassVar[dict[str, type[Part]]] = {}
    _STATED: ClassVar[tuple[str, ...]] = ("keeps", "corrects", "undoable", "examples")

    keeps: ClassVar[bool]
    corrects: ClassVar[bool]

    @property
    def undoable(self) -> bool:
        """Whether `gradwire.State.rollback` works."""
        raise NotImplementedError

    def kept_as(self, other: "Memory") -> "Memory":
        """Return the same memory with those options of another that do not affect the training."""
        del other
        return self
