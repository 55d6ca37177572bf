"""What every exchange is."""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

from gradwire._part import Part
from gradwire.memory.base import Memory
from gradwire.quantize.base import Quantizer
from gradwire.sparsify.base import Sparsifier

__all__ = ["Exchange"]


@dataclasses.dataclass(frozen=True, repr=False)
class Exchange(Part):
    """Any exchange."""

    KINDS: ClassVar[dict[str, type[Part]]] = {}
    _STATED: ClassVar[tuple[str, ...]] = ("check", "examples")

    def check(self, sparsify: Sparsifier, quantize: Quantizer) -> None:
        """Refuse a codec whose frames cannot be combined in this way.

        Raises
        ------
        ValueError
            The parts do not fit.
        """
        raise NotImplementedError

    def check_memory(self, memory: Memory) -> None:
        """Refuse a codec whose memory does not go with this. Most take every memory.

        Raises
        ------
        ValueError
            It does not.
        """

    def check_range(self, quantize: Quantizer, memory: Memory) -> None:
        """Refuse a quantizer whose range is too small here for want of a residual.

        Raises
        ------
        ValueError
            It is.
        """

    def suits(self, shape: Sequence[int]) -> bool:
        """Tell whether a tensor of this shape is sent in this way, and not dense."""
        del shape
        return True
