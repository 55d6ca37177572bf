"""Values as floating-point numbers, rounded to nearest."""

import dataclasses
from typing import ClassVar

from gradwire import _validate
from gradwire._part import Part

__all__ = ["BFloat16", "Float16", "Float32"]


@dataclasses.dataclass(frozen=True, repr=False)
class Float32(Part):
    """32 bits, exact for float32, float16 and bfloat16 tensors."""

    kind: ClassVar[str] = "float32"


@dataclasses.dataclass(frozen=True, repr=False)
class BFloat16(Part):
    """16 bits: the range of float32 with 8 bits of precision; saturates instead of overflowing."""

    kind: ClassVar[str] = "bfloat16"


@dataclasses.dataclass(frozen=True, repr=False)
class Float16(Part):
    """16 bits: IEEE binary16 with 11 bits of precision; saturates instead of overflowing.

    Parameters
    ----------
    scaled : bool
        Multiply the values of each frame by the largest power of two that does not overflow, which
        keeps small gradients out of the subnormals. Costs one more read of the selected values.
    """

    scaled: bool = True
    kind: ClassVar[str] = "float16"

    def __post_init__(self) -> None:
        _validate.boolean("scaled", self.scaled)
