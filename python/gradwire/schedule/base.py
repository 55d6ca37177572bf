"""What every schedule is."""

import dataclasses
from typing import ClassVar

from gradwire._part import Part
from gradwire.codec import Codec

__all__ = ["Schedule"]


@dataclasses.dataclass(frozen=True, repr=False)
class Schedule(Part):
    """Any schedule."""

    KINDS: ClassVar[dict[str, type[Part]]] = {}
    _STATED: ClassVar[tuple[str, ...]] = ("examples",)

    def codec_at(self, codec: Codec, epoch: int) -> Codec | None:
        """Return the codec for an epoch, or None for an epoch without compression."""
        raise NotImplementedError
