"""The schedule that changes nothing."""

import dataclasses
from typing import ClassVar

from gradwire._part import Part
from gradwire.codec import Codec

__all__ = ["Constant"]


@dataclasses.dataclass(frozen=True, repr=False)
class Constant(Part):
    """The same codec in every epoch."""

    kind: ClassVar[str] = "constant"

    def codec_at(self, codec: Codec, epoch: int) -> Codec | None:
        """Return the codec for an epoch."""
        return codec
