"""Codecs from outside of this package: a sparsifier in Python, a preset, an entry point.

Memory, quantizer, frames, checkpoints, `gradwire.torch` and the command line work with it as with
their own. See the guide "Adding a codec".
"""

import dataclasses
import re
from typing import TYPE_CHECKING, Any, ClassVar

from gradwire._part import Part

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["KINDS", "Sparsifier"]

KINDS: dict[str, type["Sparsifier"]] = {}
"""The subclasses there are, by kind: for configurations to be read back."""


@dataclasses.dataclass(frozen=True, repr=False)
class Sparsifier(Part):
    """Which entries go, decided in Python: a base class.

    A subclass is a frozen dataclass whose fields are its options: plain values, that
    `get_config` returns and `from_config` takes. It has a ``kind`` of its own, by which a
    configuration names it, and the methods below. It holds no state: all that changes is in
    `gradwire.State`.

    Every encode makes an array of the tensor's size for `select` to look at; the rest costs what
    `gradwire.Codec.encode_at` does.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        kind = cls.__dict__.get("kind")
        if kind is None:
            return  # meant to be derived from once more
        from gradwire.sparsify import SPARSIFIERS

        name = f"{cls.__module__}.{cls.__qualname__}"
        if not isinstance(kind, str) or not re.fullmatch(r"[a-z][a-z0-9_]*", kind):
            raise TypeError(f"{name}.kind must be a lower-case identifier, got {kind!r}")
        other = KINDS.get(kind)
        own = [each for each in SPARSIFIERS if getattr(each, "kind", None) == kind]
        if own or (other is not None and _home(other) != _home(cls)):
            taken = f"gradwire.sparsify.{own[0].__name__}" if own else ".".join(_home(other))
            raise TypeError(f"{name}.kind is {kind!r}, which is the kind of {taken}")
        KINDS[kind] = cls

    kind: ClassVar[str]

    def select(self, values: "NDArray[np.float32]", *, step: int, key: int) -> "NDArray[Any]":
        """Return the positions that go.

        Parameters
        ----------
        values : numpy.ndarray
            float32, shape (n,), finite, read-only: tensor and memory together.
        step : int
            Encodes of this tensor before this one.
        key : int
            64 bits that are the same on every rank, and others for other steps and other names of
            the state: to draw from, as with ``numpy.random.Generator(numpy.random.Philox(key))``.

        Returns
        -------
        numpy.ndarray
            Integers, shape (count,), strictly ascending, each in 0..n-1. Entries that are zero may
            be among them; they take room and change nothing.
        """
        raise NotImplementedError(f"{type(self).__name__} has no method select")

    def max_count(self, numel: int) -> int:
        """Return how many entries of so many may be selected at most, by default all."""
        return numel


def _home(cls: type[Any] | None) -> tuple[str, str]:
    return ("", "") if cls is None else (cls.__module__, cls.__qualname__)
