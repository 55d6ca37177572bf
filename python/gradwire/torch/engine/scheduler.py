"""Sets every parameter's codec between steps, by a schedule."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gradwire import _validate
from gradwire._codec import Codec
from gradwire.schedule import Accordion, BySteps, Constant, Schedule, recommended
from gradwire.torch.engine.consensus import ControlChannel, agree
from gradwire.torch.engine.parameter import ParameterSlot, set_codec
from gradwire.torch.errors import warn
from gradwire.torch.transport import Channel

EPOCH = 100  # steps that count as one where a program tells of none


@dataclass(frozen=True, slots=True)
class Position:
    """A schedule's position, fully computed: `Scheduler.take` cannot fail."""

    epoch: int
    lr: float | None  # the last one given
    critical: Mapping[str, bool]  # with `Accordion`, whether each parameter is in such a regime
    norms: Mapping[str, float]  # with `Accordion`, the last one of each parameter
    told: bool = False  # `Handle.epoch` was called
    mode: str = ""  # of a scheduler that has several
    codecs: Mapping[str, Codec | None] = field(default_factory=dict)  # None: dense at present
    measured: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)  # sums of gradients


class Scheduler:
    """Sets every compressed parameter's codec for the epoch.

    The parameters have the attached codecs. Without a schedule, each codec gets its recommended
    one. Do not call any method during a step. A schedule by epochs counts `EPOCH` steps as one
    epoch until `advance` is first called.

    ``measures`` tells whether this rank's gradients are measured. All ranks decide by the gradients
    of rank 0, or with a hierarchy by those of the first node, whose ranks each have a share.
    """

    def __init__(
        self,
        schedule: Schedule | None,
        parameters: Mapping[str, ParameterSlot],
        *,
        measures: bool,
    ) -> None:
        self._schedules = {
            name: recommended(parameter.codec) if schedule is None else schedule
            for name, parameter in parameters.items()
        }
        # All recommended schedules that are not constant are the same.
        changing = [one for one in self._schedules.values() if not isinstance(one, Constant)]
        self.schedule = next(iter(changing), Constant()) if schedule is None else schedule
        self._at: Position
        self._warned = False
        self._parameters = parameters
        self._codecs = {name: parameter.codec for name, parameter in parameters.items()}
        self.measures = measures
        critical, norms = dict.fromkeys(parameters, True), dict.fromkeys(parameters, 0.0)
        self._move(Position(0, None, critical, norms))

    @property
    def epoch(self) -> int:
        """The epoch that has begun."""
        return self._at.epoch

    def advance(self, epoch: int, lr: float | None, control: ControlChannel) -> None:
        """Begin an epoch. A collective; no effect if the schedule counts steps."""
        epoch = _validate.integer("epoch", epoch, low=0)
        lr = None if lr is None else _validate.positive("lr", lr)
        with control.act("epoch()") as channel:
            agree(channel, "began an epoch", {"epoch": epoch, "lr": lr})
            at = self._at
            if isinstance(self.schedule, BySteps):
                return
            if epoch < at.epoch and at.told:
                raise ValueError(f"epoch {at.epoch} has already begun, got epoch {epoch}")
            lowered = lr is not None and at.lr is not None and lr < at.lr
            at = self._at = replace(at, lr=at.lr if lr is None else lr, told=True)
            if epoch == at.epoch:
                return
            if isinstance(self.schedule, Accordion):
                at = self._decided(self.schedule, channel, lowered=lowered)
            self._move(replace(at, epoch=epoch))

    def is_due(self, step: int) -> bool:
        """Tell whether the schedule counts steps and must advance at this one."""
        counted = self._counted
        if counted is None:
            return self._waits and not self._warned and step >= EPOCH
        return counted.epoch_at(step) != self._at.epoch

    def advance_to(self, step: int) -> None:
        """Advance a schedule that counts steps, on all ranks at the same one.

        Warns if the schedule waits for `Handle.epoch`, which the program may call later.
        """
        counted = self._counted
        if counted is not None:
            self._move(replace(self._at, epoch=counted.epoch_at(step)))
        if self._waits and not self._warned:
            self._warned = True
            does = (
                "so everything stays at low compression: it compares the gradients of whole epochs"
                if counted is None
                else f"so {EPOCH} steps count as an epoch until it is: or say how many do by "
                f"gradwire.schedule.BySteps({self.schedule!r}, steps)"
            )
            warn(
                f"{self.schedule!r} changes the compression from epoch to epoch, and "
                f"handle.epoch(epoch) was not called in {EPOCH} steps, {does}. Call it on every "
                "rank at the start of each epoch",
                RuntimeWarning,
            )

    @property
    def _waits(self) -> bool:
        """Whether the schedule depends on epochs, and `Handle.epoch` was never called."""
        return not self._at.told and not isinstance(self.schedule, Constant | BySteps)

    @property
    def _counted(self) -> BySteps | None:
        """The schedule that is advanced by steps, if any."""
        if isinstance(self.schedule, BySteps):
            return self.schedule
        # Otherwise a warm-up would have no end.
        waits = self._waits and self.schedule.by_epoch_alone
        return BySteps(self.schedule, EPOCH) if waits else None

    @property
    def place(self) -> str:
        """The schedule's position and present ratios, in words; empty if it changes nothing."""
        if isinstance(self.schedule, Constant):
            return ""
        untold = " (handle.epoch() was not called)" * self._waits
        return f"{self.schedule!r}, epoch {self.epoch}{untold}: {self._sent()}"

    def _sent(self) -> str:
        """Return the present ratios of the compressed parameters, in words."""
        slots = [slot for slot in self._parameters.values() if not slot.paused]
        every: set[Any] = {getattr(slot.codec.sparsify, "ratio", None) for slot in slots}
        ratios = sorted(every - {None})
        if not ratios:
            return "compressed" if slots else "dense"
        least, most = f"{ratios[0]:g}", f"{ratios[-1]:g}"
        return f"ratio {most}" if len(ratios) == 1 else f"ratios from {least} to {most}"

    def _decided(self, schedule: Accordion, channel: Channel, *, lowered: bool) -> Position:
        """End an epoch: all ranks decide the same, from the gradients of the measuring ranks."""
        critical, norms = dict(self._at.critical), dict(self._at.norms)
        if schedule.is_measured(self.epoch):
            squares = torch.zeros(len(self._parameters), dtype=torch.float64, device="cpu")
            for at, parameter in enumerate(self._parameters.values()):
                if self.measures and parameter.measured is not None:
                    total = parameter.measured.astype(np.float64)
                    squares[at] = float(total @ total)
            channel.all_reduce(squares).wait()
            for name, norm in zip(self._parameters, squares.sqrt().tolist(), strict=True):
                critical[name] = self.epoch == 0 or schedule.is_critical(norms[name], norm)
                norms[name] = norm
        if lowered:
            critical = dict.fromkeys(critical, True)
        return replace(self._at, critical=critical, norms=norms)

    def _move(self, position: Position) -> None:
        self.take(self._computed(position))

    def _computed(self, position: Position) -> Position:
        """Return the position with the codecs of all parameters and the gradient sums it needs."""
        codecs = {name: self._codec(name, position) for name in self._parameters}
        sums: dict[str, NDArray[np.float32]] = {}
        schedule = self.schedule
        if (
            self.measures
            and isinstance(schedule, Accordion)
            and schedule.is_measured(position.epoch)
        ):
            every = self._parameters.items()
            zeros = {name: np.zeros(slot.numel, np.float32) for name, slot in every}
            sums = zeros | dict(position.measured)
        return replace(position, codecs=codecs, measured=sums)

    def _codec(self, name: str, position: Position) -> Codec | None:
        codec = self._codecs[name]
        if isinstance(self.schedule, Accordion):
            critical, shape = position.critical[name], self._parameters[name].shape
            return self.schedule.codec_for(codec, critical=critical, shape=shape)
        return self._schedules[name].codec_at(codec, position.epoch)

    def take(self, position: Position) -> None:
        """Continue from a position. This cannot fail."""
        self._at = replace(position, codecs={}, measured={})
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
            "lr": self._at.lr,
            "critical": dict(self._at.critical),
            "norms": dict(self._at.norms),
            **({"told": self._at.told} if depends else {}),
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

    def prepare(
        self, saved: Mapping[str, Any], measured: Mapping[str, NDArray[np.float32]]
    ) -> Position:
        """Return a saved position; only its epoch and learning rate if the schedule is another one.

        Accepts the results of `state_dict` and `sums`; raises an error of any kind for anything
        else, or for those of other parameters.
        """
        epoch = _validate.integer("epoch", saved["epoch"], low=0, high=2**53)
        lr = None if saved["lr"] is None else _validate.positive("lr", saved["lr"])
        names, at = self._parameters, saved["critical"]
        critical = {name: _validate.boolean("critical", at[name]) for name in names}
        norms = {name: _validate.real("norms", saved["norms"][name]) for name in names}
        config = saved["config"]
        counted = isinstance(config, Mapping) and config.get("kind") == BySteps.kind
        is_told = _validate.boolean("told", saved.get("told", epoch > 0 and not counted))
        present = json.loads(json.dumps(self.schedule.get_config()))
        if _without_exchanges(config) != _without_exchanges(present):
            return self._computed(replace(self._at, epoch=epoch, lr=lr, told=is_told))
        position = Position(epoch, lr, critical, norms, is_told, self._at.mode, measured=measured)
        return self._computed(position)


def _without_exchanges(config: Any) -> Any:
    """Return a schedule's configuration without the exchanges of its codecs."""
    if not isinstance(config, Mapping):
        return config
    return {key: _without_exchanges(value) for key, value in config.items() if key != "exchange"}
