"""Where a model of FSDP2 gives its gradients: the hooks of its modules."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from gradwire.torch.engine.backward import BackwardPasses
from gradwire.torch.fsdp.model import Group
from gradwire.torch.fsdp.submission import Submission
from gradwire.torch.fsdp.switch import Switch
from gradwire.torch.transport import Transport

__all__ = ["FSDPSource"]

_SWITCH = "_gradwire_switch"


class FSDPSource:
    """The hooks of all FSDP modules of a model.

    Parameters
    ----------
    model : torch.nn.Module
    groups : sequence of Group
    known : set of int
        The ids of the sharded parameters that are known by name.
    over : torch.distributed.ProcessGroup
        The replicas of this rank's shards.
    """

    def __init__(
        self, model: Any, groups: Sequence[Group], known: set[int], over: dist.ProcessGroup
    ) -> None:
        self._model: Any = model
        self._groups = groups
        self._known = known
        self._over = over
        self._switch: Switch | None = getattr(model, _SWITCH, None)

    def check(self) -> None:
        """Raise a ValueError if the model has a hook already."""
        if self._switch is not None:
            if self._switch.submission is not None:
                raise ValueError("this model already has an attached codec; detach() its handle")
        elif any(each.hook is not None for each in self._groups):
            raise ValueError(
                "an FSDP module already has a hook, by set_all_reduce_hook(), and takes only one"
            )

    def register(self) -> None:
        """Find the model's switch; take the hooks the first time."""
        model, self._model = self._model, None  # the model keeps the switch, not the other way
        if self._switch is None:
            self._switch = Switch(model, self._groups, self._over)
            setattr(model, _SWITCH, self._switch)

    def open(self, passes: BackwardPasses, holder: object) -> None:
        """Submit gradients from now on."""
        assert self._switch is not None  # after register()
        submission = Submission(passes, self._known, self._over.size())
        self._switch.on(submission, self._over, holder)

    def transport(self, ranks: Any, timeout: timedelta | None) -> Transport:
        """Refuse other ranks: FSDP's meshes do not change."""
        raise ValueError("FSDP keeps its ranks: shard the model anew, and attach() to it")

    def close(self) -> None:
        """Leave gradients to plain averages from now on."""
        assert self._switch is not None
        self._switch.off()
