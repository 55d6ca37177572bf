"""What every exchange is."""

import dataclasses
from typing import ClassVar

from gradwire._part import Part
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
