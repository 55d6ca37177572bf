"""Schedules that count steps."""

import dataclasses
from typing import Any, ClassVar, Self

from gradwire import _validate
from gradwire._part import part_from_config
from gradwire.codec import Codec
from gradwire.schedule.base import Schedule

__all__ = ["BySteps"]


@dataclasses.dataclass(frozen=True, repr=False)
class BySteps(Schedule):
    """Another schedule, with a number of steps in place of an epoch.

    For training that has no epochs, or has very long ones. It advances by itself: ``handle.epoch``
    need not be called, and changes no compression.

    Parameters
    ----------
    schedule : gradwire.schedule.Schedule
        One that depends on the epoch alone. `Accordion` does not: it compares the gradients of
        whole epochs.
    steps : int
        How many steps count as one epoch, at least 1. A step is an exchanged backward pass that
        was not rolled back.
    """

    schedule: Schedule
    steps: int
    kind: ClassVar[str] = "by_steps"
    by_epoch_alone: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not isinstance(self.schedule, Schedule):
            raise TypeError(f"schedule must be a schedule, got {self.schedule!r}")
        if not self.schedule.by_epoch_alone:
            raise ValueError(
                f"{self.schedule!r} cannot advance by steps: it depends on more than the epoch; "
                "call handle.epoch() with it"
            )
        self._set("steps", _validate.integer("steps", self.steps, low=1))

    def epoch_at(self, step: int) -> int:
        """Return the epoch of the inner schedule at a step; both count from 0.

        The last one has no end.
        """
        epoch, last = step // self.steps, self.last
        return epoch if last is None else min(epoch, last)

    @property
    def last(self) -> int | None:
        """That of the inner schedule."""
        return self.schedule.last

    def codec_at(self, codec: Codec, epoch: int) -> Codec | None:
        """Return the codec for an epoch of the inner schedule, as `epoch_at` returns it."""
        return self.schedule.codec_at(codec, epoch)

    def get_config(self) -> dict[str, Any]:
        """Return ``{"kind": ..., "schedule": ..., "steps": ...}``."""
        return super().get_config() | {"schedule": self.schedule.get_config()}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Build the schedule that `get_config` describes; the inverse of it."""
        inner = config.get("schedule")
        schedule = part_from_config("schedule", inner, Schedule.KINDS)
        return super().from_config(config | {"schedule": schedule})
