"""Codecs from other packages: a sparsifier written in Python, a preset, an entry point.

Memories, quantizers, frames, checkpoints, `gradwire.torch` and the command line work with such a
sparsifier just as with a built-in one. See the guide "Adding a codec".
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
"""All subclasses by kind, for reading configurations."""


@dataclasses.dataclass(frozen=True, repr=False)
class Sparsifier(Part):
    """Base class for sparsifiers written in Python.

    A subclass is a frozen dataclass whose fields are its options: plain values that `get_config`
    returns and `from_config` accepts. It sets a unique ``kind``, which identifies it in
    configurations, and implements `select`. It must not hold state: everything that changes is in
    `gradwire.State`.

    Every encode allocates an array of the tensor's size for `select`; the rest costs as much as
    `gradwire.Codec.encode_at`.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        kind = cls.__dict__.get("kind")
        if kind is None:
            return  # an abstract subclass
        from gradwire.sparsify import SPARSIFIERS

        name = f"{cls.__module__}.{cls.__qualname__}"
        if not isinstance(kind, str) or not re.fullmatch(r"[a-z][a-z0-9_]*", kind):
            raise TypeError(f"{name}.kind must be a lower-case identifier, got {kind!r}")
        other = KINDS.get(kind)
        own = [each for each in SPARSIFIERS if getattr(each, "kind", None) == kind]
        if own or (other is not None and _home(other) != _home(cls)):
            taken = f"gradwire.sparsify.{own[0].__name__}" if own else ".".join(_home(other))
            raise TypeError(f"{name}.kind is {kind!r}, which {taken} already uses")
        KINDS[kind] = cls

    kind: ClassVar[str]

    def select(self, values: "NDArray[np.float32]", *, step: int, key: int) -> "NDArray[Any]":
        """Return the positions of the entries to send.

        Parameters
        ----------
        values : numpy.ndarray
            float32, shape (n,), finite, read-only: the sum of tensor and memory.
        step : int
            Number of earlier encodes of this tensor.
        key : int
            A 64-bit random seed, the same on every rank, different for each step and for each name
            of a state. Use it as in ``numpy.random.Generator(numpy.random.Philox(key))``.

        Returns
        -------
        numpy.ndarray
            Integers, shape (count,), strictly ascending, each in 0..n-1. Entries that are zero may
            be selected; they take up space and change nothing.
        """
        raise NotImplementedError(f"{type(self).__name__} has no method select")

    def max_count(self, numel: int) -> int:
        """Return the largest number of entries that `select` may return, by default all."""
        return numel


def _home(cls: type[Any] | None) -> tuple[str, str]:
    return ("", "") if cls is None else (cls.__module__, cls.__qualname__)
