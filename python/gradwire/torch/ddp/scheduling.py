"""Moving a schedule on: between two steps, on all ranks alike."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist

from gradwire import _validate
from gradwire.schedule import Accordion, Schedule
from gradwire.torch.ddp import parameters as making
from gradwire.torch.ddp.agreement import agree
from gradwire.torch.ddp.control import Control
from gradwire.torch.ddp.layout import Parameter

if TYPE_CHECKING:
    from gradwire.codec import Codec

__all__ = ["Scheduler"]


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
        accordion = self.schedule if isinstance(self.schedule, Accordion) else None
        measures = accordion is not None and accordion.is_measured(self.epoch) and self._rank == 0
        for name, parameter in self._parameters.items():
            codec = self._codec(name)
            parameter.paused = codec is None
            if codec is not None:
                making.use(parameter, codec)
            parameter.measured = np.zeros(parameter.numel, np.float32) if measures else None

    def _codec(self, name: str) -> "Codec | None":
        own = self._codecs[name]
        if isinstance(self.schedule, Accordion):
            shape = self._parameters[name].tensor.shape
            return self.schedule.codec_for(own, critical=self.critical[name], shape=shape)
        return self.schedule.codec_at(own, self.epoch)

    # Checkpoints ------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return what `load` takes: plain tensors, numbers and strings."""
        return {
            "config": self.schedule.get_config(),
            "epoch": self.epoch,
            "lr": self._lr,
            "critical": dict(self.critical),
            "norms": dict(self._norms),
            "measured": {
                name: torch.from_numpy(parameter.measured.copy())
                for name, parameter in self._parameters.items()
                if parameter.measured is not None
            },
        }

    @staticmethod
    def check(saved: Any, parameters: Mapping[str, Parameter]) -> int:
        """Return the epoch of what `state_dict` returned.

        Raises
        ------
        ValueError, KeyError, TypeError
            It is something else, or of other parameters.
        """
        epoch = _validate.integer("epoch", saved["epoch"], low=0)
        for what in ("critical", "norms"):
            if saved[what].keys() != parameters.keys():
                raise ValueError(f"the schedule's {what} are of other parameters")
        for name, total in saved["measured"].items():
            if total.shape != (parameters[name].numel,) or total.dtype != torch.float32:
                raise ValueError(f"the sum of gradients of {name!r} is of another parameter")
        return epoch

    def load(self, saved: Mapping[str, Any]) -> None:
        """Go on where another one was; from its epoch only, if that had another schedule."""
        self.epoch = int(saved["epoch"])
        self._lr = saved["lr"]
        same = saved["config"] == self.schedule.get_config()
        if same:
            self.critical = {name: bool(flag) for name, flag in saved["critical"].items()}
            self._norms = {name: float(norm) for name, norm in saved["norms"].items()}
        self._apply()
        for name, total in saved["measured"].items() if same else ():
            measured = self._parameters[name].measured
            if measured is not None:
                measured[:] = total.numpy()
