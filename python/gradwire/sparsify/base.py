"""The base class of sparsifiers, and the one that sends every entry."""

import dataclasses
from typing import ClassVar

from gradwire._part import Part

__all__ = ["All", "Sparsifier"]


@dataclasses.dataclass(frozen=True, repr=False)
class Sparsifier(Part):
    """Any sparsifier: one of this package, or a `gradwire.extension.Sparsifier`.

    Attributes
    ----------
    selects : bool
        Only some of the entries are sent, with their positions.
    shared : bool
        All ranks send the same entries; `count` says how many.
    magnitude : str or None
        The ``scale`` of `gradwire.quantize.SignScale` that takes its magnitude from this
        sparsifier, if there is one.
    """

    KINDS: ClassVar[dict[str, type[Part]]] = {}
    _STATED: ClassVar[tuple[str, ...]] = ("selects", "shared", "magnitude")

    selects: ClassVar[bool]
    shared: ClassVar[bool]
    magnitude: ClassVar[str | None]

    def count(self, numel: int) -> int:
        """Return the number of entries that every rank sends; only of a shared selection."""
        raise NotImplementedError(f"with {type(self).__name__} every rank sends its own entries")


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
