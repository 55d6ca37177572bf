"""Applies the decisions of ``"auto"`` to the codecs of all parameters, and keeps them in saves."""

import dataclasses
from collections.abc import Mapping
from typing import Any, cast

from numpy.typing import NDArray

from gradwire._auto import SETTINGS
from gradwire._codec import EXACT, Codec
from gradwire.schedule import BySteps
from gradwire.schedule.base import with_ratio
from gradwire.sparsify import All
from gradwire.torch.engine.parameter import set_codec
from gradwire.torch.engine.scheduler import Position, Scheduler

EVERYTHING = "everything"
"""The mode beside the settings: the codec with all entries, which empties the residuals."""


class AutoScheduler(Scheduler):
    """A scheduler whose mode is the setting of the model, changed on all ranks in the same step.

    Its schedule is a warm-up of the codec, or none. While ``probing``, the warm-up counts as over,
    because a probe is to show how long later steps take.
    """

    probing = True

    @property
    def mode(self) -> str:
        """The setting in use, or `EVERYTHING`."""
        return self._at.mode or SETTINGS[0]

    @property
    def codes(self) -> bool:
        """Whether gradients go by the codec."""
        return self.mode in ("codec", EVERYTHING)

    @property
    def ratio(self) -> float | None:
        """The ratio of the codec, if it has one."""
        return next((getattr(each.sparsify, "ratio", None) for each in self._codecs.values()), None)

    @property
    def empties(self) -> bool:
        """Whether residuals must be sent before the codec is left."""
        return any(_whole(each) != each for each in self._codecs.values())

    @property
    def warms_up(self) -> bool:
        """Whether the codec still sends more than it will: such steps are not measured."""
        warm_up = self.schedule
        return self.mode == "codec" and isinstance(warm_up, BySteps) and self.epoch != warm_up.last

    def choose(self, mode: str, *, probing: bool) -> None:
        """Change the mode. Call `BackwardPasses.forget` afterwards, to drop all layouts."""
        self.probing = probing
        epoch = self._epoch_at(0) if probing else self.epoch
        self._move(dataclasses.replace(self._at, mode=mode, epoch=epoch))

    def _epoch_at(self, step: int) -> int:
        """Return the epoch of the warm-up at a step with the codec; the last one in a probe."""
        warm_up = self.schedule
        if not isinstance(warm_up, BySteps):
            return self.epoch
        last = warm_up.last if self.probing else None
        return warm_up.epoch_at(step) if last is None else last

    def is_due(self, step: int) -> bool:
        """Tell whether the warm-up must advance at this step."""
        return self._epoch_at(step) != self.epoch

    def advance_to(self, step: int) -> None:
        """Advance the warm-up, on all ranks at the same step."""
        self._move(dataclasses.replace(self._at, epoch=self._epoch_at(step)))

    def _codec(self, name: str, position: Position) -> Codec | None:
        if position.mode == EVERYTHING:
            return _whole(self._codecs[name])
        return super()._codec(name, position) if position.mode == "codec" else None

    def take(self, position: Position) -> None:
        """Continue from a position. This cannot fail."""
        super().take(position)
        for name, parameter in self._parameters.items():
            if parameter.paused:
                set_codec(parameter, self._codecs[name])

    def state_dict(self) -> dict[str, Any]:
        """Return the position and the setting; a run that resumes has still to empty residuals."""
        return {**super().state_dict(), "setting": "codec" if self.codes else self.mode}

    def prepare(self, saved: Mapping[str, Any], measured: Mapping[str, NDArray[Any]]) -> Position:
        """Return a saved position. One without decisions of "auto" is of a run with the codec."""
        mode = saved.get("setting", "codec")
        if mode not in SETTINGS:
            raise ValueError(f"the schedule's setting must be one of {SETTINGS}, got {mode!r}")
        found = super().prepare(saved, measured)
        return self._computed(dataclasses.replace(found, mode=mode))


def _whole(codec: Codec) -> Codec:
    """Return a codec that sends all entries as they are, and with them what its memory has kept."""
    if not (codec.memory.keeps and hasattr(codec.sparsify, "ratio")):
        return codec
    if not codec.memory.corrects:
        return with_ratio(codec, 1.0).replace(quantize=EXACT)
    # Sampling could miss some. Without masking, momentum stays: the optimizer goes on with it.
    memory = dataclasses.replace(cast("Any", codec.memory), masking=False)
    return codec.replace(sparsify=All(), quantize=EXACT, memory=memory)
