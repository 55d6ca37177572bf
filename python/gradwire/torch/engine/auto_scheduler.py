"""Gives parameters what was decided for their buckets, and saves that."""

import dataclasses
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from gradwire import _validate
from gradwire.auto import ladder
from gradwire.exchange.owners import Owners
from gradwire.schedule import BySteps, Schedule
from gradwire.schedule.base import with_ratio
from gradwire.torch.engine.parameter import ParameterSlot
from gradwire.torch.engine.parameter_plan import ParameterPlan
from gradwire.torch.engine.scheduler import Position, Scheduler

if TYPE_CHECKING:
    from gradwire.codec import Codec

__all__ = ["AutoScheduler"]


class AutoScheduler(Scheduler):
    """A scheduler that is told what to do, by whoever decides: all ranks at the same pass.

    Its schedule is a warm-up of the codec, or none. It is over, as far as it is concerned, unless
    `choose` is told of a step.

    Attributes
    ----------
    chosen : ParameterPlan
        How each compressed parameter is sent. Another object after every change.
    saved : ParameterPlan
        What a checkpoint holds: `chosen`, without what is sent for a moment only.

    Parameters
    ----------
    schedule : gradwire.schedule.Constant or None
        None for what is recommended for each codec.
    parameters, measures
        As in `Scheduler`.
    owners : gradwire.exchange.ReduceScatter or gradwire.exchange.QuantizedAllReduce, optional
        What may take the place of the codecs' own exchange.
    """

    def __init__(
        self,
        schedule: Schedule | None,
        parameters: Mapping[str, ParameterSlot],
        *,
        measures: bool,
        owners: Owners | None = None,
    ) -> None:
        self._owners = owners
        self.chosen = self.saved = ParameterPlan(dict.fromkeys(parameters))
        super().__init__(schedule, parameters, measures=measures)
        self.epoch = self.epoch_at(None)

    def epoch_at(self, step: int | None) -> int:
        """Return the epoch of the warm-up at a step with the codec; None for what comes after."""
        warm_up = self.schedule
        if not isinstance(warm_up, BySteps):
            return self.epoch
        last = warm_up.last
        assert last is not None  # of what is recommended
        return last if step is None else warm_up.epoch_at(step)

    @property
    def warms_up(self) -> bool:
        """Whether more is sent than was chosen."""
        return self.epoch != self.epoch_at(None)

    def is_due(self, step: int) -> bool:
        """Tell that it does not advance by itself."""
        del step
        return False

    def choose(
        self, chosen: ParameterPlan, *, saved: ParameterPlan | None = None, step: int | None = None
    ) -> None:
        """Change what is sent. Drop all layouts after it: `Passes.forget`.

        States stay as they are. What is known of the sizes of frames is forgotten where a ratio or
        an exchange changes.

        Parameters
        ----------
        chosen : ParameterPlan
        saved : ParameterPlan, optional
            What a run that resumes goes on with, if not with that.
        step : int, optional
            That of the warm-up, as in `epoch_at`.
        """
        self.epoch = self.epoch_at(step)
        self.chosen, self.saved = chosen, chosen if saved is None else saved
        self._apply()

    def _codec(self, name: str, epoch: int, critical: Mapping[str, bool]) -> "Codec | None":
        del critical
        ratio, codec = self.chosen.ratios[name], self._codecs[name]
        if ratio is None:
            return None
        if name in self.chosen.owned and self._owners is not None:
            codec = dataclasses.replace(codec, exchange=self._owners)
        if hasattr(codec.sparsify, "ratio"):
            codec = with_ratio(codec, ratio)
        return self._schedules[name].codec_at(codec, epoch)

    def take(self, position: Position) -> None:
        """Continue from a position. This cannot fail."""
        if position.chosen is not None:
            self.chosen = self.saved = position.chosen
        super().take(position)

    def state_dict(self) -> dict[str, Any]:
        """Return what was chosen, too."""
        saved = {**super().state_dict(), "chosen": dict(self.saved.ratios)}
        owned = self.saved.owned
        return {**saved, "owners": sorted(owned)} if owned else saved

    def prepare(self, saved: Mapping[str, Any], measured: Mapping[str, NDArray[Any]]) -> Position:
        """Return a saved position. A run without decisions compressed everything, and so goes on.

        A ratio that this run does not try becomes the next larger one that it does, or the largest;
        owners that it does not have, an all-gather.

        Raises
        ------
        ValueError, TypeError
            ``saved`` is not what `state_dict` returned, or has other parameters.
        """
        found = super().prepare(saved, measured)
        given = saved.get("chosen")
        if given is None:
            chosen: dict[str, float | None] = {
                name: float(getattr(codec.sparsify, "ratio", 1.0))
                for name, codec in self._codecs.items()
            }
        elif not isinstance(given, Mapping) or given.keys() != self._codecs.keys():
            raise ValueError("the schedule has ratios of other parameters than the model")
        else:
            chosen = {
                name: None if each is None else _validate.unit_interval("chosen", each)
                for name, each in given.items()
            }
        tried = {
            name: None if each is None else self._tried(name, each) for name, each in chosen.items()
        }
        owned = self._owned(saved.get("owners", ()))
        before, now = self.chosen, ParameterPlan(tried, owned)
        self.chosen = now
        try:
            epoch = self.epoch_at(None) if isinstance(self.schedule, BySteps) else found.epoch
            found = self._position(
                epoch, found.lr, found.critical, found.norms, measured, told=False
            )
        finally:
            self.chosen = before
        return Position(
            found.epoch,
            found.lr,
            found.critical,
            found.norms,
            found.codecs,
            found.measured,
            found.told,
            now,
        )

    def _owned(self, given: object) -> frozenset[str]:
        """Return which saved parameters go through owners in this run."""
        if isinstance(given, str) or not isinstance(given, Collection):
            raise TypeError(f"the schedule's owners must be a list of names, got {given!r}")
        if unknown := [each for each in given if each not in self._codecs]:
            raise ValueError(f"the schedule has owners of other parameters: {unknown}")
        return frozenset() if self._owners is None else frozenset(given)

    def _tried(self, name: str, ratio: float) -> float:
        """Return the ratio that may be chosen in place of another one."""
        least = getattr(self._codecs[name].sparsify, "ratio", None)
        if least is None:
            return 1.0
        ratios = ladder(least)
        return min((each for each in ratios if each >= ratio), default=ratios[0])
