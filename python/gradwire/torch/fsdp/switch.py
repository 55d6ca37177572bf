"""The hook of all FSDP modules of a model: FSDP calls it with what a group has reduced."""

import functools
import weakref
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from gradwire.torch.fsdp.model import Group, states_of
from gradwire.torch.fsdp.submission import Submission

__all__ = ["Switch"]

_CALLBACK = "_root_post_backward_final_callback"
_RESET = "_reset_iter_state"


class Switch:
    """Takes the hooks of a model for good, and leads them to where gradients are submitted.

    Without a submission it averages over the replicas itself: FSDP, which knows of no other nodes,
    would not.

    Parameters
    ----------
    model : torch.nn.Module
    groups : sequence of Group
    over : torch.distributed.ProcessGroup
        The replicas of this rank's shards.
    """

    def __init__(self, model: nn.Module, groups: Sequence[Group], over: dist.ProcessGroup) -> None:
        self.over = over
        self.submission: Submission | None = None
        # The handle, which lives as long as it is attached, whether or not the caller keeps it.
        self._holder: object = None
        for group in groups:
            seen: list[Any] = []
            group.follow(seen)
            group.hook = functools.partial(self._reduced, group, seen)
        for state in states_of(groups):
            setattr(state, _CALLBACK, functools.partial(self._ended, getattr(state, _CALLBACK)))
            setattr(state, _RESET, functools.partial(self._lost, getattr(state, _RESET)))
        model.register_forward_pre_hook(functools.partial(_forward, weakref.ref(self)))

    def on(self, submission: Submission, over: dist.ProcessGroup, holder: object) -> None:
        """Submit gradients from now on."""
        self.over, self.submission, self._holder = over, submission, holder

    def off(self) -> None:
        """Average by itself from now on."""
        self.submission = self._holder = None

    def _reduced(self, group: Group, seen: Sequence[Any], output: torch.Tensor) -> None:
        """Take a reduced gradient. FSDP calls this on its stream for all-reduces."""
        submission = self.submission
        if not group.reduces_all and submission is not None:
            submission.keep(group, seen, output)
        elif submission is None or not submission.submit(group, seen, output):
            nodes = self.over.size()
            dist.all_reduce(output, group=self.over)
            if group.inner.gradient_divide_factor is None:
                output.div_(nodes)

    def _ended(self, original: Any) -> None:
        """End a backward pass, after FSDP has."""
        original()
        if self.submission is not None:
            self.submission.end()

    def _lost(self, original: Any) -> None:
        """Forget a pass that failed, as FSDP does."""
        original()
        if self.submission is not None:
            self.submission.forget()


def _forward(switch: "weakref.ref[Switch]", module: nn.Module, inputs: Any) -> None:
    """Forget a pass that never ended: an exception left it."""
    del module, inputs
    found = switch()
    if found is not None and found.submission is not None:
        found.submission.forget()
