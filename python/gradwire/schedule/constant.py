"""The schedule that changes nothing."""

import dataclasses
from typing import ClassVar

from gradwire.codec import Codec
from gradwire.schedule.base import Schedule

__all__ = ["Constant"]


@dataclasses.dataclass(frozen=True, repr=False)
class Constant(Schedule):
    """The same codec in every epoch."""

    kind: ClassVar[str] = "constant"
    by_epoch_alone: ClassVar[bool] = True

    @property
    def last(self) -> int:
        """The first epoch of those that have the same codec for good."""
        return 0

    def codec_at(self, codec: Codec, epoch: int) -> Codec | None:
        """Return the codec for an epoch."""
        return codec
