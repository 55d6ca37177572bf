"""What every schedule is."""

import dataclasses
from typing import ClassVar

from gradwire._part import Part
from gradwire.codec import Codec

__all__ = ["Schedule"]


@dataclasses.dataclass(frozen=True, repr=False)
class Schedule(Part):
    """Any schedule.

    Attributes
    ----------
    by_epoch_alone : bool
        The codec of an epoch depends on nothing else, so that `BySteps` can have it.
    """

    KINDS: ClassVar[dict[str, type[Part]]] = {}
    _STATED: ClassVar[tuple[str, ...]] = ("by_epoch_alone",)

    by_epoch_alone: ClassVar[bool]

    @property
    def last(self) -> int | None:
        """The first epoch of those that have the same codec for good; None if it is not known."""
        return None

    def codec_at(self, codec: Codec, epoch: int) -> Codec | None:
        """Return the codec for an epoch, or None for an epoch without compression."""
        raise NotImplementedError
