"""Where a DDP model gives its gradients: the one hook that it takes, switched on and off."""

import functools
import weakref
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from gradwire.torch.auto import AutoController, Automatic
from gradwire.torch.ddp.automatic import AutomaticSubmission
from gradwire.torch.ddp.hook import Switch, gradwire_hook
from gradwire.torch.ddp.submission import Submission
from gradwire.torch.engine.backward import BackwardPasses
from gradwire.torch.engine.handle import Handle
from gradwire.torch.transport import ProcessGroups

__all__ = ["DDPSource", "check_ranks"]

_SWITCH = "_gradwire_switch"


class DDPSource:
    """The communication hook of a DDP model.

    Parameters
    ----------
    model : torch.nn.parallel.DistributedDataParallel
    over : torch.distributed.ProcessGroup
        Averages buckets while the hook is switched off.
    whole : bool
        As in `Worker`.
    choices : Automatic or None
        What to decide on while the model trains.
    """

    def __init__(
        self,
        model: Any,
        over: dist.ProcessGroup,
        *,
        whole: bool,
        choices: Automatic | None = None,
    ) -> None:
        self._model: Any = weakref.ref(model)  # the model keeps the switch, not the other way
        self._over = over
        self._whole = whole
        self._choices = choices
        self._switch: Switch | None = None

    def check(self) -> None:
        """Raise a ValueError if the model has a hook already."""
        switch = getattr(self._model(), _SWITCH, None)
        if switch is not None and switch.submission is not None:
            raise ValueError("this model already has an attached codec; detach() its handle first")
        if switch is None and any(hook is not gradwire_hook for hook, _ in _hooks(self._model())):
            raise ValueError("the model already has a communication hook, and DDP takes only one")

    def register(self) -> None:
        """Find the model's switch; register the hook the first time."""
        model = self._model()
        switch: Switch | None = getattr(model, _SWITCH, None)
        if switch is None:
            # A copy of a model lists the hook of the original, but does not have it.
            _hooks(model).clear()
            switch = Switch(self._over)
            try:
                model.register_comm_hook(switch, gradwire_hook)
            except RuntimeError as error:
                raise ValueError(f"the model already has a communication hook ({error})") from error
            setattr(model, _SWITCH, switch)
        self._switch = switch

    def open(self, passes: BackwardPasses, holder: object) -> None:
        """Submit buckets from now on."""
        assert self._switch is not None  # after register()
        submission = Submission(passes, whole=self._whole)
        if self._choices is not None:
            assert isinstance(holder, Handle)  # which has what decisions change
            pilot = holder.decide(functools.partial(AutoController, self._choices))
            passes.defer()
            submission = AutomaticSubmission(passes, pilot, whole=self._whole)
        self._switch.on(self._over, submission, holder)

    def transport(self, ranks: Any, timeout: timedelta | None) -> ProcessGroups:
        """Return what connects the ranks of another process group, which the model must have."""
        model = self._model()
        if model is None:
            raise ValueError("the model does not exist any more")
        over = model.process_group if ranks is None else ranks
        check_ranks(model.process_group, over)
        self._over = over
        return ProcessGroups(over, timeout)

    def close(self) -> None:
        """Leave buckets to plain all-reduce from now on."""
        assert self._switch is not None
        self._switch.off()


def _hooks(model: Any) -> list[tuple[Any, Any]]:
    """Return DDP's own list of hooks, each with its state."""
    hooks: list[tuple[Any, Any]] = getattr(model, "_comm_hooks", [])
    return hooks


def check_ranks(own: dist.ProcessGroup, over: dist.ProcessGroup) -> None:
    """Refuse to average over other ranks than those whose replicas must stay equal."""
    expected, given = (sorted(dist.get_process_group_ranks(group)) for group in (own, over))
    if expected != given:
        raise ValueError(
            f"process_group= has ranks {given}, but the model has ranks {expected}: averaging over "
            "other ranks would let the replicas drift apart; pass this group to "
            "DistributedDataParallel(process_group=...) when you wrap the model"
        )
