"""Moving a schedule on: between two steps, on all ranks alike."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch.distributed as dist
from numpy.typing import NDArray

from gradwire import _validate
from gradwire.schedule import Accordion, Schedule
from gradwire.torch.ddp import parameters as making
from gradwire.torch.ddp.agreement import agree
from gradwire.torch.ddp.control import Control
from gradwire.torch.ddp.layout import Parameter

if TYPE_CHECKING:
    from gradwire.codec import Codec

__all__ = ["Position", "Scheduler"]


@dataclass(frozen=True, slots=True)
class Position:
    """Where a schedule is, worked out so far that nothing is left that could fail.

    Attributes
    ----------
    codecs : dict
        The codec of each parameter, None for one that travels dense for now.
    measured : dict of str to numpy.ndarray
        Sums of gradients, where they are wanted.
    """

    epoch: int
    lr: float | None
    critical: dict[str, bool]
    norms: dict[str, float]
    codecs: "dict[str, Codec | None]"
    measured: dict[str, NDArray[np.float32]]


class Scheduler:
    """Gives every compressed parameter its codec of the epoch.

    No method may be called while a step is under way.

    Attributes
    ----------
    epoch : int
        The one that is under way.
    critical : dict of str to bool
        With `Accordion`, the regime of each parameter.

    Parameters
    ----------
    schedule : gradwire.schedule.Schedule
    parameters : mapping of str to Parameter
        Those that are compressed, each with the codec it was attached with.
    rank : int
    """

    def __init__(self, schedule: Schedule, parameters: Mapping[str, Parameter], rank: int) -> None:
        self.schedule = schedule
        self.epoch = 0
        self.critical = dict.fromkeys(parameters, True)
        self._lr: float | None = None
        self._norms = dict.fromkeys(parameters, 0.0)
        self._parameters = parameters
        self._codecs: dict[str, Codec] = {
            name: parameter.codec for name, parameter in parameters.items()
        }
        self._rank = rank
        self._apply()

    def advance(self, epoch: int, lr: float | None, control: Control) -> None:
        """Begin an epoch. A collective."""
        epoch = _validate.integer("epoch", epoch, low=0)
        lr = None if lr is None else _validate.positive("lr", lr)
        with control.act("epoch()") as group:
            self._advance(epoch, lr, group)

    def _advance(self, epoch: int, lr: float | None, group: dist.ProcessGroup) -> None:
        agree(group, "began an epoch", {"epoch": epoch, "lr": lr})
        if epoch < self.epoch:
            raise ValueError(f"epoch {self.epoch} has begun already, got epoch {epoch}")
        lowered = lr is not None and self._lr is not None and lr < self._lr
        self._lr = self._lr if lr is None else lr
        if epoch == self.epoch:
            return
        if isinstance(self.schedule, Accordion):
            self._decide(self.schedule, group, lowered=lowered)
        self.epoch = epoch
        self._apply()

    def _decide(self, schedule: Accordion, group: dist.ProcessGroup, *, lowered: bool) -> None:
        """End an epoch: rank 0 decides by its own gradients, and all ranks follow."""
        if schedule.is_measured(self.epoch):
            found: list[Any] = [None]
            if self._rank == 0:
                found[0] = {
                    name: float(np.linalg.norm(parameter.measured.astype(np.float64)))
                    for name, parameter in self._parameters.items()
                    if parameter.measured is not None
                }
            source = dist.get_process_group_ranks(group)[0]
            dist.broadcast_object_list(found, src=source, group=group)
            for name, norm in found[0].items():
                first = self.epoch == 0
                self.critical[name] = first or schedule.is_critical(self._norms[name], norm)
                self._norms[name] = norm
        if lowered:
            self.critical = dict.fromkeys(self.critical, True)

    def _apply(self) -> None:
        self.take(self._position(self.epoch, self._lr, self.critical, self._norms, {}))

    def _position(
        self,
        epoch: int,
        lr: float | None,
        critical: Mapping[str, bool],
        norms: Mapping[str, float],
        measured: Mapping[str, NDArray[np.float32]],
    ) -> "Position":
        codecs = {name: self._codec(name, epoch, critical) for name in self._parameters}
        sums = {}
        if self._sums(epoch):
            for name, parameter in self._parameters.items():
                total = measured.get(name)
                sums[name] = np.zeros(parameter.numel, np.float32) if total is None else total
        return Position(epoch, lr, dict(critical), dict(norms), codecs, sums)

    def _sums(self, epoch: int) -> bool:
        """Tell whether gradients are added up here: on rank 0, where all others take it from."""
        accordion = self.schedule if isinstance(self.schedule, Accordion) else None
        return accordion is not None and accordion.is_measured(epoch) and self._rank == 0

    def _codec(self, name: str, epoch: int, critical: Mapping[str, bool]) -> "Codec | None":
        own = self._codecs[name]
        if isinstance(self.schedule, Accordion):
            shape = self._parameters[name].tensor.shape
            return self.schedule.codec_for(own, critical=critical[name], shape=shape)
        return self.schedule.codec_at(own, epoch)

    def take(self, position: "Position") -> None:
        """Go on from a position. Nothing here can fail."""
        self.epoch, self._lr = position.epoch, position.lr
        self.critical, self._norms = position.critical, position.norms
        for name, parameter in self._parameters.items():
            codec = position.codecs[name]
            parameter.paused = codec is None
            if codec is not None:
                making.use(parameter, codec)
            parameter.measured = position.measured.get(name)
            parameter.measured_before = None

    # Checkpoints ------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return where the schedule is: plain numbers and strings."""
        return {
            "config": self.schedule.get_config(),
            "epoch": self.epoch,
            "lr": self._lr,
            "critical": dict(self.critical),
            "norms": dict(self._norms),
        }

    def sums(self) -> dict[str, NDArray[np.float32]]:
        """Return copies of the sums of gradients, in memory order.

        With `Accordion` rank 0 has one for each parameter in every epoch, zero where nothing is
        measured: what a checkpoint holds must not depend on when it is written.
        """
        if not isinstance(self.schedule, Accordion) or self._rank != 0:
            return {}
        return {
            name: np.zeros(parameter.numel, np.float32)
            if parameter.measured is None
            else parameter.measured.copy()
            for name, parameter in self._parameters.items()
        }

    def check(self, saved: Mapping[str, Any]) -> int:
        """Return the epoch of what `state_dict` returned.

        Raises
        ------
        ValueError, TypeError
            It is something else, or of other parameters.
        """
        return self.prepare(saved, {}).epoch

    def prepare(
        self, saved: Mapping[str, Any], measured: Mapping[str, NDArray[np.float32]]
    ) -> "Position":
        """Return where another one was; its epoch only, if that had another schedule.

        Parameters
        ----------
        saved : mapping
            What `state_dict` returned.
        measured : mapping of str to numpy.ndarray
            Of `sums`, what there is.

        Raises
        ------
        ValueError, TypeError
            It is something else, or of other parameters.
        """
        keys = {"config", "epoch", "lr", "critical", "norms"}
        if saved.keys() != keys:
            raise ValueError(f"the schedule must have the keys {sorted(keys)}, got {sorted(saved)}")
        epoch = _validate.integer("epoch", saved["epoch"], low=0, high=2**53)
        lr = None if saved["lr"] is None else _validate.positive("lr", saved["lr"])
        for what in ("critical", "norms"):
            if not isinstance(saved[what], Mapping):
                raise TypeError(f"the schedule's {what} must be a dict, got {saved[what]!r}")
            if saved[what].keys() != self._parameters.keys():
                raise ValueError(f"the schedule's {what} are of other parameters")
        critical = {
            key: _validate.boolean("critical", each) for key, each in saved["critical"].items()
        }
        norms = {key: _validate.real("norms", each) for key, each in saved["norms"].items()}
        if saved["config"] != json.loads(json.dumps(self.schedule.get_config())):
            return self._position(epoch, lr, self.critical, self._norms, {})
        return self._position(epoch, lr, critical, norms, measured)
