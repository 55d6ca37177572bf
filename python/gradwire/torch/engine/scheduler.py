"""Gives every parameter its codec between two steps, by a schedule or by what "auto" decides."""

import dataclasses
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from gradwire import _validate
from gradwire.auto import ladder
from gradwire.exchange.owners import Owners
from gradwire.schedule import Accordion, BySteps, Constant, Schedule, recommended
from gradwire.schedule.base import with_ratio
from gradwire.torch.engine.consensus import ControlChannel, agree
from gradwire.torch.engine.parameter import ParameterSlot, set_codec
from gradwire.torch.errors import warn
from gradwire.torch.transport import Channel

if TYPE_CHECKING:
    from gradwire.codec import Codec

__all__ = ["EPOCH", "AutoScheduler", "ParameterPlan", "Position", "Scheduler"]


@dataclass(frozen=True, slots=True, eq=False)
class ParameterPlan:
    """How each compressed parameter is sent.

    Attributes
    ----------
    ratios : mapping of str to (float or None)
        Share of the entries that is sent, of which codecs without one take no notice; None if it is
        dense.
    owned : frozenset of str
        Those whose sums go through owners of ranges, where all of their bucket do.
    """

    ratios: Mapping[str, float | None]
    owned: frozenset[str] = frozenset()

    @property
    def codes(self) -> bool:
        """Whether anything is compressed."""
        return any(each is not None for each in self.ratios.values())

    def equals(self, other: "ParameterPlan") -> bool:
        """Tell whether everything is sent as with another one."""
        return self.ratios == other.ratios and self.owned == other.owned


EPOCH = 100
"""Steps that count as an epoch where a program tells of none."""


@dataclass(frozen=True, slots=True)
class Position:
    """A schedule's position, fully computed: `Scheduler.take` cannot fail.

    Attributes
    ----------
    lr : float or None
        The last learning rate given.
    critical, norms : dict
        With `Accordion`, whether each parameter is in a critical regime, and its last norm.
    codecs : dict
        The codec of each parameter; None for a parameter that is currently sent dense.
    measured : dict of str to numpy.ndarray
        Sums of gradients, if needed.
    told : bool
        `Handle.epoch` was called.
    chosen : ParameterPlan, optional
        What `AutoScheduler` gives each parameter.
    """

    epoch: int
    lr: float | None
    critical: dict[str, bool]
    norms: dict[str, float]
    codecs: "dict[str, Codec | None]"
    measured: dict[str, NDArray[np.float32]]
    told: bool = False
    chosen: ParameterPlan | None = None


class Scheduler:
    """Gives every compressed parameter its codec for the epoch.

    Do not call any method during a step. A schedule of epochs counts `EPOCH` steps as one until
    `advance` is called with the first.

    Attributes
    ----------
    schedule : gradwire.schedule.Schedule
        By default what is recommended for each codec.
    epoch : int
    critical : dict of str to bool
        With `Accordion`, whether each parameter is in a critical regime.
    measures : bool
        Whether this rank's gradients are measured: those of rank 0, by which all ranks decide, or
        in a hierarchy of the first node, of which each rank has a share.

    Parameters
    ----------
    schedule : gradwire.schedule.Schedule, optional
    parameters : mapping of str to ParameterSlot
        The compressed parameters, each with the codec that was attached.
    measures : bool
    """

    def __init__(
        self, schedule: Schedule | None, parameters: Mapping[str, ParameterSlot], *, measures: bool
    ) -> None:
        self._schedules = {
            name: recommended(parameter.codec) if schedule is None else schedule
            for name, parameter in parameters.items()
        }
        # Those that are recommended and change anything are the same.
        every = (each for each in self._schedules.values() if not isinstance(each, Constant))
        self.schedule = next(every, Constant()) if schedule is None else schedule
        self.epoch = 0
        self._told = self._warned = False
        self.critical = dict.fromkeys(parameters, True)
        self._lr: float | None = None
        self._norms = dict.fromkeys(parameters, 0.0)
        self._parameters = parameters
        self._codecs: dict[str, Codec] = {
            name: parameter.codec for name, parameter in parameters.items()
        }
        self.measures = measures
        self._apply()

    def advance(self, epoch: int, lr: float | None, control: ControlChannel) -> None:
        """Begin an epoch. A collective; without effect if the schedule counts steps."""
        epoch = _validate.integer("epoch", epoch, low=0)
        lr = None if lr is None else _validate.positive("lr", lr)
        with control.act("epoch()") as channel:
            self._advance(epoch, lr, channel)

    def _advance(self, epoch: int, lr: float | None, channel: Channel) -> None:
        agree(channel, "began an epoch", {"epoch": epoch, "lr": lr})
        if isinstance(self.schedule, BySteps):
            return
        if epoch < self.epoch and self._told:
            raise ValueError(f"epoch {self.epoch} has already begun, got epoch {epoch}")
        self._told = True
        lowered = lr is not None and self._lr is not None and lr < self._lr
        self._lr = self._lr if lr is None else lr
        if epoch == self.epoch:
            return
        if isinstance(self.schedule, Accordion):
            self._decide(self.schedule, channel, lowered=lowered)
        self.epoch = epoch
        self._apply()

    def is_due(self, step: int) -> bool:
        """Tell whether the schedule counts steps and has to advance at this one."""
        counted = self._counted
        if counted is None:
            return self._waits and not self._warned and step >= EPOCH
        return counted.epoch_at(step) != self.epoch

    def advance_to(self, step: int) -> None:
        """Advance a schedule that counts steps, on all ranks at the same one.

        Raises
        ------
        RuntimeWarning
            It waits for `Handle.epoch`, and the program has warnings for errors.
        """
        counted = self._counted
        if counted is not None:
            self.epoch = counted.epoch_at(step)
            self._apply()
        if self._waits and not self._warned:
            self._warned = True
            _warn_of_epochs(self.schedule, counts=counted is not None)

    @property
    def _waits(self) -> bool:
        """Whether epochs matter, and none has been told of."""
        return not self._told and not isinstance(self.schedule, Constant | BySteps)

    @property
    def _counted(self) -> BySteps | None:
        """What is advanced by steps, if anything."""
        if isinstance(self.schedule, BySteps):
            return self.schedule
        # Otherwise a warm-up would have no end.
        waits = self._waits and self.schedule.by_epoch_alone
        return BySteps(self.schedule, EPOCH) if waits else None

    @property
    def place(self) -> str:
        """Where the schedule is, and what is sent now, in words; empty if it changes nothing."""
        if isinstance(self.schedule, Constant):
            return ""
        untold = " (handle.epoch() was not called)" * self._waits
        return f"{self.schedule!r}, epoch {self.epoch}{untold}: {self._sent()}"

    def _sent(self) -> str:
        """Return what is sent of the entries of compressed parameters."""
        every = [each for each in self._parameters.values() if not each.paused]
        found = [getattr(each.codec.sparsify, "ratio", None) for each in every]
        ratios = sorted({each for each in found if each is not None})
        if not ratios:
            return "compressed" if every else "dense"
        least, most = f"{ratios[0]:g}", f"{ratios[-1]:g}"
        return f"ratio {most}" if len(ratios) == 1 else f"ratios from {least} to {most}"

    def _decide(self, schedule: Accordion, channel: Channel, *, lowered: bool) -> None:
        """End an epoch: all ranks decide alike, from the gradients of those that have measured."""
        if schedule.is_measured(self.epoch):
            squares = torch.zeros(len(self._parameters), dtype=torch.float64, device="cpu")
            for at, parameter in enumerate(self._parameters.values()):
                if self.measures and parameter.measured is not None:
                    total = parameter.measured.astype(np.float64)
                    squares[at] = float(total @ total)
            channel.all_reduce(squares).wait()
            for name, norm in zip(self._parameters, squares.sqrt().tolist(), strict=True):
                first = self.epoch == 0
                self.critical[name] = first or schedule.is_critical(self._norms[name], norm)
                self._norms[name] = norm
        if lowered:
            self.critical = dict.fromkeys(self.critical, True)

    def _apply(self) -> None:
        self.take(
            self._position(self.epoch, self._lr, self.critical, self._norms, {}, told=self._told)
        )

    def _position(
        self,
        epoch: int,
        lr: float | None,
        critical: Mapping[str, bool],
        norms: Mapping[str, float],
        measured: Mapping[str, NDArray[np.float32]],
        *,
        told: bool,
    ) -> "Position":
        codecs = {name: self._codec(name, epoch, critical) for name in self._parameters}
        sums = {}
        if self._sums(epoch):
            for name, parameter in self._parameters.items():
                total = measured.get(name)
                sums[name] = np.zeros(parameter.numel, np.float32) if total is None else total
        return Position(epoch, lr, dict(critical), dict(norms), codecs, sums, told)

    def _sums(self, epoch: int) -> bool:
        """Tell whether this rank sums gradients in an epoch."""
        accordion = self.schedule if isinstance(self.schedule, Accordion) else None
        return accordion is not None and accordion.is_measured(epoch) and self.measures

    def _codec(self, name: str, epoch: int, critical: Mapping[str, bool]) -> "Codec | None":
        own = self._codecs[name]
        if isinstance(self.schedule, Accordion):
            shape = self._parameters[name].shape
            return self.schedule.codec_for(own, critical=critical[name], shape=shape)
        return self._schedules[name].codec_at(own, epoch)

    def take(self, position: "Position") -> None:
        """Continue from a position. This cannot fail."""
        self.epoch, self._lr, self._told = position.epoch, position.lr, position.told
        self.critical, self._norms = position.critical, position.norms
        for name, parameter in self._parameters.items():
            codec = position.codecs[name]
            parameter.paused = codec is None
            if codec is not None:
                set_codec(parameter, codec)
            parameter.measured = position.measured.get(name)
            parameter.measured_before = None

    # Checkpoints ------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the schedule, as plain numbers and strings."""
        depends = not isinstance(self.schedule, Constant | BySteps)
        return {
            "config": self.schedule.get_config(),
            "epoch": self.epoch,
            "lr": self._lr,
            "critical": dict(self.critical),
            "norms": dict(self._norms),
            **({"told": self._told} if depends else {}),
        }

    def sums(self) -> dict[str, NDArray[np.float32]]:
        """Return copies of the sums of gradients, in memory order.

        With `Accordion`, a rank that measures returns one per parameter in every epoch, zero if
        nothing is measured: the keys of a checkpoint must not depend on when it is written.
        """
        if not isinstance(self.schedule, Accordion) or not self.measures:
            return {}
        return {
            name: np.zeros(parameter.numel, np.float32)
            if parameter.measured is None
            else parameter.measured.copy()
            for name, parameter in self._parameters.items()
        }

    def check(self, saved: Mapping[str, Any]) -> int:
        """Return the epoch of a saved position, or raise as `prepare`."""
        return self.prepare(saved, {}).epoch

    def prepare(
        self, saved: Mapping[str, Any], measured: Mapping[str, NDArray[np.float32]]
    ) -> "Position":
        """Return a saved position; only its epoch and learning rate if the schedule is another one.

        Parameters
        ----------
        saved, measured : mapping
            What `state_dict` and `sums` returned.

        Raises
        ------
        ValueError, TypeError
            They are not that, or have other parameters.
        """
        keys = {"config", "epoch", "lr", "critical", "norms"}
        if saved.keys() - {"chosen", "owners", "told"} != keys:
            raise ValueError(f"the schedule must have the keys {sorted(keys)}, got {sorted(saved)}")
        epoch = _validate.integer("epoch", saved["epoch"], low=0, high=2**53)
        lr = None if saved["lr"] is None else _validate.positive("lr", saved["lr"])
        for what in ("critical", "norms"):
            if not isinstance(saved[what], Mapping):
                raise TypeError(f"the schedule's {what} must be a dict, got {saved[what]!r}")
            if saved[what].keys() != self._parameters.keys():
                raise ValueError(f"the schedule's {what} has other parameters than the model")
        critical = {
            key: _validate.boolean("critical", each) for key, each in saved["critical"].items()
        }
        norms = {key: _validate.real("norms", each) for key, each in saved["norms"].items()}
        config = saved["config"]
        counted = isinstance(config, Mapping) and config.get("kind") == BySteps.kind
        told = _validate.boolean("told", saved.get("told", epoch > 0 and not counted))
        if config != json.loads(json.dumps(self.schedule.get_config())):
            return self._position(epoch, lr, self.critical, self._norms, {}, told=told)
        return self._position(epoch, lr, critical, norms, measured, told=told)


def _warn_of_epochs(schedule: Schedule, *, counts: bool) -> None:
    """Warn of a schedule that nobody advances."""
    does = (
        f"so {EPOCH} steps count as an epoch until it is: or say how many do by "
        f"gradwire.schedule.BySteps({schedule!r}, steps)"
        if counts
        else "so everything stays at low compression: it compares the gradients of whole epochs"
    )
    warn(
        f"{schedule!r} changes the compression from epoch to epoch, and handle.epoch(epoch) was "
        f"not called in {EPOCH} steps, {does}. Call it on every rank at the start of each epoch",
        RuntimeWarning,
    )


class AutoScheduler(Scheduler):
    """A scheduler that is given a plan by whoever decides: all ranks at the same pass.

    Its schedule is a warm-up of the codec, or none. It is over, as far as it is concerned, unless
    `choose` is given a step.

    Attributes
    ----------
    chosen : ParameterPlan
        How each compressed parameter is sent. Another object after every change.
    saved : ParameterPlan
        What a checkpoint holds: `chosen`, without what is sent for a moment only.

    Parameters
    ----------
    schedule, parameters, measures
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
        """Change what is sent. Drop all layouts after it: `BackwardPasses.forget`.

        States stay as they are. What is known of the sizes of frames is forgotten where a ratio or
        an exchange changes. A run that resumes goes on with ``saved``, by default what is chosen;
        ``step`` is that of the warm-up, as in `epoch_at`.
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
        return dataclasses.replace(found, chosen=now)

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
