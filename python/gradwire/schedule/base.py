"""The base class of schedules, and the schedule that changes nothing."""

import dataclasses
from typing import Any, ClassVar

from gradwire._codec import Codec
from gradwire._part import Part


def ratio_of(codec: Codec) -> float:
    """Return the ratio of a codec's sparsifier, or raise a ValueError if it has none."""
    ratio: float | None = getattr(codec.sparsify, "ratio", None)
    if ratio is None:
        raise ValueError(
            f"the schedule changes the ratio, but {codec.sparsify!r} has none; pass ratio= to it, "
            "or use a schedule that takes codecs instead of ratios"
        )
    return ratio


def with_ratio(codec: Codec, ratio: float) -> Codec:
    """Return the codec with another ratio."""
    ratio_of(codec)
    sparsify: Any = codec.sparsify
    return codec.replace(sparsify=dataclasses.replace(sparsify, ratio=ratio))


@dataclasses.dataclass(frozen=True, repr=False)
class Schedule(Part):
    """The base class of schedules."""

    KINDS: ClassVar[dict[str, type[Part]]] = {}
    _STATED: ClassVar[tuple[str, ...]] = ("by_epoch_alone",)

    by_epoch_alone: ClassVar[bool]  #: codecs depend on the epoch alone, as `BySteps` requires

    @property
    def last(self) -> int | None:
        """The first epoch from which the codec stays the same; None if it is not known."""
        return None

    def codec_at(self, codec: Codec, epoch: int) -> Codec | None:
        """Return the codec for an epoch.

        Parameters
        ----------
        codec : gradwire.Codec
            The attached codec.
        epoch : int
            Number of the epoch, from 0.

        Returns
        -------
        gradwire.Codec or None
            None stands for an epoch without compression.

        Raises
        ------
        ValueError
            The schedule changes the ratio, and the codec has none.
        """
        raise NotImplementedError


@dataclasses.dataclass(frozen=True, repr=False)
class Constant(Schedule):
    """The same codec in every epoch."""

    kind: ClassVar[str] = "constant"
    by_epoch_alone: ClassVar[bool] = True

    @property
    def last(self) -> int:
        """The first epoch from which the codec stays the same."""
        return 0

    def codec_at(self, codec: Codec, epoch: int) -> Codec | None:
        """Return the codec for an epoch."""
        return codec
