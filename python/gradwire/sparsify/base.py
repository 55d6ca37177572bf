"""The base class of sparsifiers, and the one that sends every entry."""

import dataclasses
from typing import ClassVar

from gradwire._part import Part


@dataclasses.dataclass(frozen=True, repr=False)
class Sparsifier(Part):
    """The base class of sparsifiers, also of a `gradwire.extension.Sparsifier`."""

    KINDS: ClassVar[dict[str, type[Part]]] = {}
    _STATED: ClassVar[tuple[str, ...]] = ("selects", "shared", "magnitude")

    selects: ClassVar[bool]  #: only some of the entries are sent, with their positions
    shared: ClassVar[bool]  #: all ranks send the same entries; `count` says how many
    magnitude: ClassVar[str | None]
    """The ``scale`` of `gradwire.quantize.SignScale` whose magnitude it provides, if any."""

    def count(self, numel: int) -> int:
        """Return the number of entries that every rank sends; only for shared selections."""
        raise NotImplementedError(f"with {type(self).__name__} every rank sends its own entries")


@dataclasses.dataclass(frozen=True, repr=False)
class OwnSelection(Sparsifier):
    """The family of sparsifiers with which every rank selects entries of its own."""

    selects: ClassVar[bool] = True
    shared: ClassVar[bool] = False
    magnitude: ClassVar[str | None] = None


@dataclasses.dataclass(frozen=True, repr=False)
class All(Sparsifier):
    """Send every entry. No positions are sent."""

    kind: ClassVar[str] = "all"
    selects: ClassVar[bool] = False
    shared: ClassVar[bool] = True
    magnitude: ClassVar[str | None] = None

    def count(self, numel: int) -> int:
        return numel
