"""The source of an FSDP2 model's gradients: its modules' hooks, and the end of a pass.

Private attributes of FSDP are read only here, as in torch 2.15, with which this is tested.
`groups_of` raises a ValueError if they are different.
"""

import functools
import operator
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule

from gradwire.torch.engine.backward import Average, BackwardPasses, dense_average
from gradwire.torch.engine.grad_tracker import GradMark
from gradwire.torch.engine.local_gradients import as_gradient
from gradwire.torch.engine.sharding import local
from gradwire.torch.transport import Transport

# The private attributes that are used.
_OF_A_STATE = operator.attrgetter(
    "_state_ctx.manual_backward_finalization",
    "_root_post_backward_final_callback",
    "_reset_iter_state",
)
_OF_A_GROUP = operator.attrgetter(
    "_prepare_reduce_scatter_inputs",
    "_all_reduce_hook",
    "gradient_divide_factor",
    "all_reduce_grads",
    "force_sum_reduction_for_comms",
    "mesh_info.shard_process_group",
)
_OF_A_PARAMETER = operator.attrgetter("padded_sharded_param_size")


class Group:
    """The parameters of one FSDP module, which it reduces together; ``inner`` is FSDP's."""

    def __init__(self, module: FSDPModule, inner: Any) -> None:
        self.module = module
        self.inner = inner

    @property
    def shards(self) -> dist.ProcessGroup:
        """The ranks that share the parameters."""
        group: dist.ProcessGroup = self.inner.mesh_info.shard_process_group
        return group

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The sharded parameters, in FSDP's order."""
        return [record.sharded_param for record in self.inner.fsdp_params]

    def follow(self, seen: list[Any]) -> None:
        """Record in a list the parameters of each reduction, in their order, before its hook."""
        original = self.inner._prepare_reduce_scatter_inputs

        def prepare(fsdp_params: list[Any], *arguments: Any, **named: Any) -> Any:
            seen[:] = fsdp_params
            return original(fsdp_params, *arguments, **named)

        self.inner._prepare_reduce_scatter_inputs = prepare

    def factor(self, dtype: torch.dtype, nodes: int) -> float:
        """Return the factor by which a reduced gradient becomes the node's mean.

        FSDP divides before its hook, or partly after it: in float16, or where it only sums. With a
        user's divisor, which is that of all ranks, it never divides by the number of nodes.
        """
        inner, size = self.inner, float(self.shards.size())
        divisor = size if inner.gradient_divide_factor is None else inner.gradient_divide_factor
        times = 1.0 if inner.gradient_divide_factor is None else float(nodes)
        if dtype in (torch.float32, torch.bfloat16):
            return times / divisor if inner.force_sum_reduction_for_comms else times
        before = 1
        while divisor % before == 0 and divisor / before > before:
            before *= 2
        return times * before / divisor


def groups_of(model: nn.Module) -> list[Group]:
    """Return the groups of all FSDP modules of a model; raise a TypeError if it is not one itself.

    Raises a ValueError if this torch lays out FSDP differently or a module has several groups.
    """
    if not isinstance(model, FSDPModule):
        raise TypeError(
            "attach() takes a model on which torch.distributed.fsdp.fully_shard() was called, got "
            f"{type(model).__name__}; for DistributedDataParallel use gradwire.torch.ddp"
        )
    groups = []
    for name, module in model.named_modules():
        if not isinstance(module, FSDPModule):
            continue
        inner = _inner(module)
        if len(inner) > 1:
            raise ValueError(
                f"the FSDP module {name!r} has several parameter groups, which shard_placement_fn "
                "put on separate meshes: FSDP accepts no hook for it"
            )
        groups += [Group(module, inner_group) for inner_group in inner]
    return groups


def _inner(module: FSDPModule) -> list[Any]:
    try:
        state = module._get_fsdp_state()
        _OF_A_STATE(state)
        groups = list(state._fsdp_param_groups)
        for group in groups:
            _OF_A_GROUP(group)
            list(map(_OF_A_PARAMETER, group.fsdp_params))
    except AttributeError as error:
        raise ValueError(
            f"gradwire does not know how torch {torch.__version__} keeps the gradients of FSDP "
            f"modules ({error}); it was tested with torch 2.15"
        ) from error
    return groups


def states_of(model: nn.Module) -> list[Any]:
    """Return FSDP's state of each module, also without parameters: any may run its callback."""
    modules = [module for module in model.modules() if isinstance(module, FSDPModule)]
    states: list[Any] = [module._get_fsdp_state() for module in modules]
    return list({id(state): state for state in states}.values())


def names_of(model: nn.Module, groups: Sequence[Group]) -> dict[str, nn.Parameter]:
    """Return the sharded parameters that are trained, by name; wrappers' prefixes are removed."""
    for group in groups:
        group.module.reshard()  # a forward pass may have left a module unsharded
    sharded = {id(tensor) for group in groups for tensor in group.parameters}
    return {
        name.replace("_orig_mod.", "").replace("_checkpoint_wrapped_module.", ""): tensor
        for name, tensor in model.named_parameters()
        if id(tensor) in sharded and tensor.requires_grad
    }


_SWITCH = "_gradwire_switch"
_CALLBACK = "_root_post_backward_final_callback"
_RESET = "_reset_iter_state"


@dataclass(frozen=True, slots=True)
class _GroupAverage:
    """A group whose average is in progress, with this rank's shards concatenated."""

    members: list[torch.Tensor]  # its sharded parameters
    fresh: set[int]  # ids of those without a .grad, or with one that is part of this: replace it
    used: set[int]  # ids of those that got a gradient in this pass
    average: Average


class FSDPHook:
    """The hook of all FSDP modules of a model, registered permanently.

    FSDP uses the reduced gradient as soon as its hook returns. To avoid waiting there, the hook
    leaves zeros, and the averages are added at the end of the pass, after all buckets. Without a
    codec, the hook averages over the group `over` of replicas itself: FSDP does not know them.
    """

    def __init__(self, model: nn.Module, groups: Sequence[Group], over: dist.ProcessGroup) -> None:
        self._over = over
        self.passes: BackwardPasses | None = None
        # The handle, which lives as long as it is attached, whether or not the caller keeps it.
        self._holder: object = None
        self._known: set[int] = set()
        # The ids of parameters whose ``.grad`` has been averaged inside the node only.
        self._held: set[int] = set()
        self._forget()
        for group in groups:
            seen: list[Any] = []
            group.follow(seen)
            group.inner._all_reduce_hook = functools.partial(self._reduced, group, seen)
        for state in states_of(model):
            setattr(state, _CALLBACK, functools.partial(self._ended, getattr(state, _CALLBACK)))
            setattr(state, _RESET, functools.partial(self._lost, getattr(state, _RESET)))
        model.register_forward_pre_hook(functools.partial(_forward, weakref.ref(self)))

    def on(
        self, over: dist.ProcessGroup, known: set[int], passes: BackwardPasses, holder: object
    ) -> None:
        """Exchange the gradients of parameters with these ids from now on."""
        self._over, self._known, self.passes, self._holder = over, known, passes, holder
        self._held = set()
        self._forget()

    def off(self) -> None:
        """Average uncompressed, within the hook, from now on."""
        self.passes = self._holder = None

    def _forget(self) -> None:
        self._open = False
        self._averaged: list[torch.Tensor] = []
        self._pending: dict[int, _GroupAverage] = {}

    # What FSDP calls --------------------------------------------------------------------------

    def _reduced(self, group: Group, seen: Sequence[Any], output: torch.Tensor) -> None:
        """Take a reduced gradient. FSDP calls this on its stream for all-reduces."""
        passes = self.passes
        if passes is None:
            self._average(group, output)
            return
        if not group.inner.all_reduce_grads:  # as `set_requires_all_reduce` has set it
            self._keep(passes, group, seen, output)
            return
        if not self._open:
            passes.begin()
            context = group.module._get_fsdp_state()._state_ctx
            if context.manual_backward_finalization and not passes.stands_aside:
                raise ValueError(
                    "set_manual_backward_finalization(True) is not supported: averages are put "
                    "into .grad when FSDP ends the backward pass itself"
                )
            self._open = True
        if passes.stands_aside:
            self._averaged += self._members(group)
            self._add_kept(group, seen, output)
            self._average(group, output)
        elif passes.refusal is not None:
            output.fill_(torch.inf)
        else:
            self._submit(passes, group, seen, output)

    def _ended(self, original: Any) -> None:
        """Write the averages of a pass after FSDP has ended it, and raise its error, if any."""
        original()
        passes, was_open = self.passes, self._open
        averaged, pending = self._averaged, self._pending
        self._forget()
        if passes is None or not was_open:
            return
        error = passes.end()
        for group in pending.values():
            _place(group, group.average.wait())
        passes.averaged(averaged)
        if pending:
            passes.placed()
        if error is not None:
            raise error

    def _lost(self, original: Any) -> None:
        """Forget a pass that failed, as FSDP does."""
        original()
        self._forget()

    # How a group is averaged ------------------------------------------------------------------

    def _average(self, group: Group, output: torch.Tensor) -> None:
        """Average over the replicas as FSDP would: wait for the sum, and divide after it."""
        dist.all_reduce(output, group=self._over)
        if group.inner.gradient_divide_factor is None:
            output.div_(self._over.size())

    def _keep(
        self, passes: BackwardPasses, group: Group, seen: Sequence[Any], output: torch.Tensor
    ) -> None:
        """Leave the node's mean in ``.grad``: a later pass, or the optimizer, exchanges it."""
        if group.inner.gradient_divide_factor is not None:
            output.mul_(self._over.size())
        members = [record.sharded_param for record in seen]
        passes.arriving(members)
        self._held.update(map(id, members))

    def _submit(
        self, passes: BackwardPasses, group: Group, seen: Sequence[Any], output: torch.Tensor
    ) -> None:
        """Start to average a group's reduced gradients, and leave zeros."""
        if id(group) in self._pending:
            raise ValueError(
                "an FSDP module has reduced its gradients twice in one backward pass, for example "
                "because the forward pass calls it twice: apply fully_shard() to a module around "
                "both calls"
            )
        for record in seen:
            _check_hooks(record.sharded_param)
        members = self._members(group)
        buffer = self._gather(group, seen, output)
        used = {id(record.sharded_param) for record in seen}
        fresh = {
            id(tensor) for tensor in members if tensor.grad is None or id(tensor) in self._held
        }
        self._held.difference_update(map(id, members))
        output.zero_()
        average = passes.average(members, buffer, last=False, placed=False)
        self._pending[id(group)] = _GroupAverage(members, fresh, used, average)

    def _members(self, group: Group) -> list[torch.Tensor]:
        return [tensor for tensor in group.parameters if id(tensor) in self._known]

    def _gather(self, group: Group, seen: Sequence[Any], output: torch.Tensor) -> torch.Tensor:
        """Return the mean of the node, of all members without padding."""
        members, dtype = self._members(group), output.dtype
        for record in members:
            dtype = torch.promote_types(dtype, record.dtype)
        numels = [local(tensor).numel() for tensor in members]
        buffer = torch.zeros(sum(numels), dtype=dtype, device=output.device)
        parts = dict(zip(map(id, members), torch.split(buffer, numels), strict=True))
        for record, reduced in _parts(seen, output):
            parameter = record.sharded_param
            if id(parameter) not in parts:
                raise ValueError(
                    f"the parameter {record._param_fqn!r} was frozen at attach(), and has a "
                    "gradient now: detach(), and attach() again"
                )
            parts[id(parameter)].copy_(reduced)
        factor = group.factor(output.dtype, self._over.size())
        if factor != 1.0:
            buffer.mul_(factor)
        for parameter in members:
            if parameter.grad is not None and id(parameter) in self._held:
                parts[id(parameter)].add_(local(parameter.grad).flatten().to(buffer.device))
        return buffer

    def _add_kept(self, group: Group, seen: Sequence[Any], output: torch.Tensor) -> None:
        """Add gradients kept inside the node to an uncompressed average."""
        factor = group.factor(output.dtype, self._over.size())
        for record, reduced in _parts(seen, output):
            parameter = record.sharded_param
            if id(parameter) in self._held and parameter.grad is not None:
                gradient = local(parameter.grad)
                reduced.add_(gradient.flatten().to(output.device) / factor)
                gradient.zero_()
                self._held.discard(id(parameter))


def _parts(seen: Sequence[Any], output: torch.Tensor) -> Iterator[tuple[Any, torch.Tensor]]:
    """Yield FSDP's record of each parameter, with its part of a reduction, without padding."""
    at = 0
    for record in seen:
        yield record, output[at : at + local(record.sharded_param).numel()]
        at += record.padded_sharded_param_size.numel()


def _check_hooks(parameter: torch.Tensor) -> None:
    hooks = getattr(parameter, "_post_accumulate_grad_hooks", None) or {}
    if any(not isinstance(getattr(hook, "__self__", None), GradMark) for hook in hooks.values()):
        raise ValueError(
            "a parameter has a hook from register_post_accumulate_grad_hook(), such as that of an "
            "optimizer that steps within the backward pass: averages are ready only at its end"
        )


def _place(pending: _GroupAverage, averages: torch.Tensor) -> None:
    """Add averages to the zeros or gradients that FSDP left in ``.grad``."""
    numels = [local(tensor).numel() for tensor in pending.members]
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


def _forward(switch: "weakref.ref[FSDPHook]", *_: Any) -> None:
    """Forget a pass that never ended: an exception left it."""
    alive = switch()
    if alive is not None:
        alive._forget()


class FSDPSource:
    """The hooks of all FSDP modules of a model, whose parameters have the ids `known`.

    The group `over` are the replicas of this rank's shards.
    """

    def __init__(
        self, model: Any, groups: Sequence[Group], known: set[int], over: dist.ProcessGroup
    ) -> None:
        self._model: Any = model
        self._groups = groups
        self._known = known
        self._over = over
        self._switch: FSDPHook | None = getattr(model, _SWITCH, None)

    def check(self) -> None:
        """Raise a ValueError if the model has a hook already."""
        if self._switch is not None:
            if self._switch.passes is not None:
                raise ValueError("this model already has an attached codec; detach() its handle")
        elif any(group.inner._all_reduce_hook is not None for group in self._groups):
            raise ValueError(
                "an FSDP module already has a hook from set_all_reduce_hook(), and accepts only one"
            )

    def register(self) -> None:
        """Find the model's switch; take the hooks the first time."""
        model, self._model = self._model, None  # the model keeps the switch, not the other way
        if self._switch is None:
            self._switch = FSDPHook(model, self._groups, self._over)
            setattr(model, _SWITCH, self._switch)

    def open(self, passes: BackwardPasses, holder: object) -> None:
        """Exchange gradients from now on."""
        assert self._switch is not None  # after register()
        passes.dense = functools.partial(dense_average, self._over, divide_sum=True)
        self._switch.on(self._over, self._known, passes, holder)

    def transport(self, ranks: Any, timeout: timedelta | None) -> Transport:
        """Raise a ValueError: FSDP's meshes do not change."""
        raise ValueError("FSDP cannot change its ranks: shard the model again, and attach() to it")

    def close(self) -> None:
        """Average gradients uncompressed from now on."""
        assert self._switch is not None
        self._switch.off()
