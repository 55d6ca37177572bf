"""The backward passes of FSDP: what modules have reduced is submitted, and placed at the end."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from gradwire.torch.engine.backward import BackwardPasses
from gradwire.torch.engine.grad_tracker import GradMark
from gradwire.torch.engine.sharding import as_gradient, local
from gradwire.torch.errors import ExchangeError
from gradwire.torch.fsdp.model import Group

__all__ = ["Submission"]


@dataclass(frozen=True, slots=True)
class _Pending:
    """A group whose average is not there yet.

    Attributes
    ----------
    members : list of torch.Tensor
        Its sharded parameters.
    fresh : set of int
        The ids of those whose ``.grad`` is to be replaced: there was none, or it is a part of this.
    used : set of int
        The ids of those that got a gradient in this pass.
    future : Future
        Of the averages of this rank's shards, one after another.
    """

    members: list[torch.Tensor]
    fresh: set[int]
    used: set[int]
    future: "torch.futures.Future[torch.Tensor]"


class Submission:
    """Submits the groups of FSDP's backward passes, and places their averages.

    FSDP uses what it has reduced as soon as its hook returns. So that it need not wait there, it is
    left with zeros. When the pass ends, after all buckets of it, the averages are added.

    Parameters
    ----------
    passes : BackwardPasses
    known : set of int
        The ids of the sharded parameters that are known by name.
    nodes : int
        Number of replicas.
    """

    def __init__(self, passes: BackwardPasses, known: set[int], nodes: int) -> None:
        self._passes = passes
        self._known = known
        self._nodes = nodes
        # The ids of parameters whose ``.grad`` has been averaged inside the node only.
        self._held: set[int] = set()
        self.forget()

    def forget(self) -> None:
        """Forget a pass that never ended."""
        self._open = False
        self._refusal: BaseException | None = None
        self._averaged: list[torch.Tensor] = []
        self._pending: dict[int, _Pending] = {}

    def keep(self, group: Group, seen: Sequence[Any], output: torch.Tensor) -> None:
        """Leave the mean of the node to ``.grad``, for the next pass that goes between nodes.

        Or for the optimizer, whose step exchanges it.
        """
        if group.inner.gradient_divide_factor is not None:
            output.mul_(self._nodes)
        members = [each.sharded_param for each in seen]
        self._passes.arriving(members)
        self._held.update(map(id, members))

    def submit(self, group: Group, seen: Sequence[Any], output: torch.Tensor) -> bool:
        """Submit what a group has reduced, and leave zeros; False if it is not to be compressed."""
        passes = self._passes
        members = self._members(group)
        aside = passes.broken is None and not self._open
        if self._averaged or (aside and (passes.are_paused or passes.are_stale())):
            self._averaged += members
            self._add_kept(group, seen, output)
            return False
        if not self._open:
            if group.is_ended_by_hand:
                raise ValueError(
                    "set_manual_backward_finalization(True) is not supported: averages are put "
                    "into .grad when FSDP ends the backward pass itself"
                )
            self._open = True
            self._refusal = self._broken() or passes.begin()
        if self._refusal is not None:
            output.fill_(torch.inf)
            return True
        if id(group) in self._pending:
            raise ValueError(
                "an FSDP module has reduced its gradients twice in one backward pass, as one that "
                "is called twice in a forward pass: apply fully_shard() to a module around both "
                "calls"
            )
        for each in seen:
            _check_hooks(each.sharded_param)
        buffer, used = self._gather(group, seen, output)
        fresh = {id(each) for each in members if each.grad is None or id(each) in self._held}
        self._held.difference_update(map(id, members))
        output.zero_()
        future, _ = passes.submit(members, buffer, last=False, placed=False)
        self._pending[id(group)] = _Pending(members, fresh, used, future)
        return True

    def end(self) -> None:
        """Place the averages of a pass, and raise what it has to raise."""
        passes, refusal = self._passes, self._refusal
        averaged, pending, was_open = self._averaged, self._pending, self._open
        self.forget()
        if averaged:
            passes.averaged(averaged)
        if refusal is not None:
            raise refusal
        if not was_open:
            return
        error = passes.end()
        for each in pending.values():
            _place(each, each.future.wait())
        passes.placed()
        if error is not None:
            raise error

    def _broken(self) -> BaseException | None:
        first = self._passes.broken
        if first is None:
            return None
        text = f"gradwire stopped after an earlier error: {first}"
        return ExchangeError(text, getattr(first, "rank", None))

    def _members(self, group: Group) -> list[torch.Tensor]:
        return [each for each in group.parameters if id(each) in self._known]

    def _gather(
        self, group: Group, seen: Sequence[Any], output: torch.Tensor
    ) -> tuple[torch.Tensor, set[int]]:
        """Return the mean of the node, of all members without padding; and who has a gradient."""
        members = self._members(group)
        dtype = output.dtype
        for each in members:
            dtype = torch.promote_types(dtype, each.dtype)
        numels = [local(each).numel() for each in members]
        used: set[int] = set()
        buffer = torch.zeros(sum(numels), dtype=dtype, device=output.device)
        parts = dict(zip(map(id, members), torch.split(buffer, numels), strict=True))
        at = 0
        for each in seen:
            parameter = each.sharded_param
            if id(parameter) not in parts:
                raise ValueError(
                    f"the parameter {each._param_fqn!r} was frozen at attach(), and has a gradient "
                    "now: detach(), and attach() again"
                )
            part = parts[id(parameter)]
            part.copy_(output[at : at + part.numel()])
            at += each.padded_sharded_param_size.numel()
            used.add(id(parameter))
        factor = group.factor(output.dtype, self._nodes)
        if factor != 1.0:
            buffer.mul_(factor)
        for parameter in members:
            if parameter.grad is not None and id(parameter) in self._held:
                parts[id(parameter)].add_(local(parameter.grad).flatten().to(buffer.device))
        return buffer, used

    def _add_kept(self, group: Group, seen: Sequence[Any], output: torch.Tensor) -> None:
        """Add to a plain average what was kept inside the node."""
        factor, at = group.factor(output.dtype, self._nodes), 0
        for each in seen:
            parameter = each.sharded_param
            gradient = parameter.grad if id(parameter) in self._held else None
            if gradient is not None:
                here = local(gradient)
                output[at : at + here.numel()] += here.flatten().to(output.device) / factor
                here.zero_()
                self._held.discard(id(parameter))
            at += each.padded_sharded_param_size.numel()


def _check_hooks(parameter: torch.Tensor) -> None:
    hooks = getattr(parameter, "_post_accumulate_grad_hooks", None) or {}
    if any(not isinstance(getattr(each, "__self__", None), GradMark) for each in hooks.values()):
        raise ValueError(
            "a parameter has a hook of register_post_accumulate_grad_hook(), as of an optimizer "
            "that makes its step within the backward pass: averages come only at the end of it"
        )


def _place(pending: _Pending, averages: torch.Tensor) -> None:
    """Add averages to what FSDP has left in ``.grad``."""
    numels = [local(each).numel() for each in pending.members]
    for parameter, flat in zip(pending.members, torch.split(averages, numels), strict=True):
        here = local(parameter)
        average = flat.view(here.shape)
        if parameter.grad is None:
            if id(parameter) in pending.used or bool(average.any()):
                copied = average.to(here.device, here.dtype, copy=True)
                parameter.grad = as_gradient(copied, parameter)
            continue
        gradient = local(parameter.grad)
        if id(parameter) in pending.fresh:
            gradient.copy_(average)
        else:
            gradient.add_(average.to(gradient.device))
