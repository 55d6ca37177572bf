"""The base class of exchanges."""

import dataclasses
from typing import ClassVar

from gradwire._part import Part
from gradwire.memory.base import Memory
from gradwire.quantize.base import Quantizer
from gradwire.sparsify.base import Sparsifier


@dataclasses.dataclass(frozen=True, repr=False)
class Exchange(Part):
    """The base class of exchanges."""

    KINDS: ClassVar[dict[str, type[Part]]] = {}
    _STATED: ClassVar[tuple[str, ...]] = ("gathers_frames", "divides", "check")

    gathers_frames: ClassVar[bool]
    """Every rank receives the frames of all and adds them up once the step is known to count."""
    divides: ClassVar[bool]
    """Every rank owns a range of each bucket and sends every other rank a different message."""

    @property
    def means_senders(self) -> bool:
        """Whether the sum of an entry is divided by the number of ranks that sent it."""
        return False

    def check(self, sparsify: Sparsifier, quantize: Quantizer, memory: Memory) -> None:
        """Raise a ValueError if the exchange cannot combine frames of a codec with these parts."""
        raise NotImplementedError

    def for_ranks(
        self, ranks: int, sparsify: Sparsifier, quantize: Quantizer, memory: Memory
    ) -> "Exchange":
        """Return the exchange for ``ranks`` ranks and a codec with these parts, usually itself."""
        return self
