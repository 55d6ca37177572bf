"""FSDP2's parameter groups of a model, and the position of each parameter in a reduction.

Private attributes of FSDP are read only here and in `source`, as in torch 2.15, with which this is
tested. `groups_of` raises a ValueError if they are different.
"""

import operator
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule

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
    def is_ended_by_hand(self) -> bool:
        """Whether the program ends backward passes itself."""
        return bool(self.module._get_fsdp_state()._state_ctx.manual_backward_finalization)

    @property
    def is_replicated(self) -> bool:
        """Whether FSDP itself averages over replicas."""
        return getattr(self.inner.mesh_info, "replicate_process_group", None) is not None

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The sharded parameters, in FSDP's order."""
        return [each.sharded_param for each in self.inner.fsdp_params]

    def follow(self, seen: list[Any]) -> None:
        """Record in a list the parameters of each reduction, in their order, before its hook."""
        original = self.inner._prepare_reduce_scatter_inputs

        def prepare(fsdp_params: list[Any], *given: Any, **named: Any) -> Any:
            seen[:] = fsdp_params
            return original(fsdp_params, *given, **named)

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
    found = []
    for name, module in model.named_modules():
        if not isinstance(module, FSDPModule):
            continue
        inner = _inner(module)
        if len(inner) > 1:
            raise ValueError(
                f"the FSDP module {name!r} has several parameter groups, which shard_placement_fn "
                "put on separate meshes: FSDP accepts no hook for it"
            )
        found += [Group(module, each) for each in inner]
    return found


def _inner(module: FSDPModule) -> list[Any]:
    try:
        state = module._get_fsdp_state()
        _OF_A_STATE(state)
        groups = list(state._fsdp_param_groups)
        for each in groups:
            _OF_A_GROUP(each)
            list(map(_OF_A_PARAMETER, each.fsdp_params))
    except AttributeError as error:
        raise ValueError(
            f"gradwire does not know how torch {torch.__version__} keeps the gradients of FSDP "
            f"modules ({error}); it was tested with torch 2.15"
        ) from error
    return groups


def states_of(model: nn.Module) -> list[Any]:
    """Return FSDP's state of each module, also without parameters: any may run its callback."""
    modules = [each for each in model.modules() if isinstance(each, FSDPModule)]
    states: list[Any] = [each._get_fsdp_state() for each in modules]
    return list({id(state): state for state in states}.values())


def names_of(model: nn.Module, groups: Sequence[Group]) -> dict[str, nn.Parameter]:
    """Return the sharded parameters that are trained, by name; wrappers' prefixes are removed."""
    for each in groups:
        each.module.reshard()  # a forward pass may have left a module unsharded
    sharded = {id(each) for group in groups for each in group.parameters}
    return {
        name.replace("_orig_mod.", "").replace("_checkpoint_wrapped_module.", ""): each
        for name, each in model.named_parameters()
        if id(each) in sharded and each.requires_grad
    }
