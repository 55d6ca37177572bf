"""The base class of memories, and the memory that keeps nothing."""

import dataclasses
from typing import ClassVar, Literal, TypeAlias, get_args

from gradwire import _validate
from gradwire._part import Part

__all__ = ["Memory", "NoMemory", "StorageDtype", "check_storage"]


StorageDtype: TypeAlias = Literal["float32", "bfloat16"]
"""Dtypes in which a residual may be kept."""


@dataclasses.dataclass(frozen=True, repr=False)
class Memory(Part):
    """Any memory.

    Attributes
    ----------
    keeps : bool
        What is not sent is kept for later.
    corrects : bool
        The optimizer's momentum is applied here, and must not be applied again.
    updates : bool
        What is decoded is an update, to be subtracted from the parameter as it is, and not a
        gradient: the optimizer's step was made here, at `gradwire.State.learning_rate`.
    undoable : bool
        `gradwire.State.rollback` works.
    """

    KINDS: ClassVar[dict[str, type[Part]]] = {}
    _STATED: ClassVar[tuple[str, ...]] = ("keeps", "corrects", "updates", "undoable")

    keeps: ClassVar[bool]
    corrects: ClassVar[bool]
    updates: ClassVar[bool]

    @property
    def undoable(self) -> bool:
        """Whether `gradwire.State.rollback` works."""
        raise NotImplementedError

    def kept_as(self, other: "Memory") -> "Memory":
        """Return the same memory, kept in as many buffers and in the same dtype as another."""
        return self


def check_storage(dtype: object, seed: object) -> int:
    """Check the dtype of a residual, and return the seed of its rounding."""
    _validate.choice("dtype", dtype, get_args(StorageDtype))
    return _validate.integer("seed", seed, low=0)


@dataclasses.dataclass(frozen=True, repr=False)
class NoMemory(Memory):
    """Drop what is not sent."""

    kind: ClassVar[str] = "none"
    keeps: ClassVar[bool] = False
    corrects: ClassVar[bool] = False
    updates: ClassVar[bool] = False
    undoable: ClassVar[bool] = True
