"""The base class of memories, and the memory that keeps nothing."""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from gradwire._part import Part


@dataclasses.dataclass(frozen=True, repr=False)
class Memory(Part):
    """The base class of memories."""

    KINDS: ClassVar[dict[str, type[Part]]] = {}
    _STATED: ClassVar[tuple[str, ...]] = ("keeps", "corrects", "updates")

    keeps: ClassVar[bool]  #: what is not sent is kept for later
    corrects: ClassVar[bool]  #: the optimizer's momentum is applied here, and must not be again
    updates: ClassVar[bool]
    """Decoded values are updates, to be subtracted from the parameter unchanged, not gradients:
    the optimizer's step was computed here, with `gradwire.State.learning_rate`."""
    _KEPT_AS: ClassVar[tuple[str, ...]] = ()  # how it is kept, without effect on training
    _OPTIMIZER_DEFAULTS: ClassVar[Mapping[str, Any]] = {}  # options of an optimizer, None here

    def for_optimizer(self, options: Mapping[str, Any]) -> Self:
        """Return a copy whose options that are None are taken from an optimizer.

        Options that the optimizer lacks get their usual values.
        """
        found = {
            name: options.get(name, usual)
            for name, usual in self._OPTIMIZER_DEFAULTS.items()
            if getattr(self, name) is None
        }
        return dataclasses.replace(self, **found) if found else self

    def kept_as(self, other: "Memory") -> "Memory":
        """Return the same memory, kept in the same dtype as another."""
        if type(other) is not type(self):
            return self
        kept: dict[str, Any] = {name: getattr(other, name) for name in self._KEPT_AS}
        return dataclasses.replace(self, **kept)


@dataclasses.dataclass(frozen=True, repr=False)
class NoMemory(Memory):
    """Drop the entries that are not sent."""

    kind: ClassVar[str] = "none"
    keeps: ClassVar[bool] = False
    corrects: ClassVar[bool] = False
    updates: ClassVar[bool] = False
