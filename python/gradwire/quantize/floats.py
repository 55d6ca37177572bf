"""Values as floating-point numbers, rounded to nearest."""

import dataclasses
from typing import ClassVar

from gradwire import _validate
from gradwire.quantize.base import Quantizer

__all__ = ["BFloat16", "Float16", "Float32"]


@dataclasses.dataclass(frozen=True, repr=False)
class Float32(Quantizer):
    """32 bits, exact for float32, float16 and bfloat16 tensors."""

    kind: ClassVar[str] = "float32"
    summed_as: ClassVar[str | None] = "float32"
    contracts: ClassVar[bool] = True
    needs_memory: ClassVar[bool] = False


@dataclasses.dataclass(frozen=True, repr=False)
class BFloat16(Quantizer):
    """16 bits: the range of float32 with 8 bits of precision; saturates instead of overflowing."""

    kind: ClassVar[str] = "bfloat16"
    summed_as: ClassVar[str | None] = "bfloat16"
    contracts: ClassVar[bool] = True
    needs_memory: ClassVar[bool] = False


@dataclasses.dataclass(frozen=True, repr=False)
class Float16(Quantizer):
    """16 bits: IEEE binary16 with 11 bits of precision; saturates instead of overflowing.

    Parameters
    ----------
    scaled : bool
        Multiply the values of each frame by the largest power of two that does not overflow, which
        keeps small gradients out of the subnormals. Costs one more read of the selected values.
    """

    scaled: bool = True
    kind: ClassVar[str] = "float16"
    contracts: ClassVar[bool] = True
    needs_memory: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _validate.boolean("scaled", self.scaled)

    @property
    def summed_as(self) -> str | None:
        """float16, unless every rank scales its values by a factor of its own."""
        return None if self.scaled else "float16"

    @property
    def largest(self) -> float | None:
        """65504, unless values are scaled."""
        return None if self.scaled else 65504.0

    def check_summable(self, exchange: str) -> None:
        """Refuse an exchange that sums values on the wire, if they are scaled."""
        if self.scaled:
            raise ValueError(
                f"{exchange} sums values on the wire, but Float16() scales the values of each rank "
                "differently; pass quantize=gradwire.quantize.Float16(scaled=False) or BFloat16()"
            )
