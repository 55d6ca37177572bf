"""Checks what `all_reduce` is given, before the other ranks hear of it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, get_args

import torch
import torch.distributed as dist

from gradwire.torch.collective.work import Op
from gradwire.torch.engine.checks import check_codec, check_frames, check_memory

if TYPE_CHECKING:
    from gradwire.codec import Codec
    from gradwire.state import State

__all__ = ["factor", "group", "pairs"]

_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def group(process_group: dist.ProcessGroup | None) -> dist.ProcessGroup:
    """Return a process group; that of all ranks by default.

    Raises
    ------
    ValueError
        torch.distributed is not initialized, or this process is not in the group.
    """
    if process_group is None:
        if not dist.is_initialized():
            raise ValueError("call torch.distributed.init_process_group() first")
        process_group = dist.group.WORLD
    if not isinstance(process_group, dist.ProcessGroup):
        raise ValueError(
            f"group must be a process group that this rank is in, got {process_group!r}"
        )
    return process_group


def pairs(
    tensor: torch.Tensor | Sequence[torch.Tensor],
    codec: "Codec",
    state: "State | Sequence[State]",
) -> "tuple[list[torch.Tensor], list[State]]":
    """Return tensors and states as lists.

    Raises
    ------
    TypeError, ValueError
        They are not what they have to be, or do not go together.
    """
    check_codec(codec, "all_reduce()")
    check_frames(codec, "all_reduce()")
    check_memory(codec)
    alone = isinstance(tensor, torch.Tensor)
    if not alone and not isinstance(tensor, list | tuple):
        raise TypeError(f"tensor must be a tensor or a list of tensors, got {_kind(tensor)}")
    if alone == isinstance(state, list | tuple):
        raise TypeError(
            "pass one state for one tensor, and a list of states for a list of tensors, got "
            f"{_kind(tensor)} and {_kind(state)}"
        )
    tensors = [tensor] if isinstance(tensor, torch.Tensor) else list(tensor)
    states: list[Any] = list(state) if isinstance(state, list | tuple) else [state]
    if len(tensors) != len(states) or not tensors:
        raise ValueError(f"got {len(tensors)} tensors and {len(states)} states")
    if len({id(each) for each in states}) < len(states):
        raise ValueError("two tensors have the same state: make one for each tensor")
    for index, (each, one) in enumerate(zip(tensors, states, strict=True)):
        _check(index, each, codec, one)
    return tensors, states


def factor(op: Op, codec: "Codec", world_size: int) -> float:
    """Return what an average is multiplied with."""
    if op not in get_args(Op):
        raise ValueError(f"op must be one of {get_args(Op)}, got {op!r}")
    if op == "mean":
        return 1.0
    if codec.exchange.means_senders:
        raise ValueError(f'{codec.exchange!r} is a mean over senders, which goes with op="mean"')
    return float(world_size)


def _check(index: int, tensor: torch.Tensor, codec: "Codec", state: "State") -> None:
    if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided:
        raise TypeError(f"tensor {index} must be a dense tensor, got {_kind(tensor)}")
    if tensor.dtype not in _DTYPES:
        names = ", ".join(str(each).removeprefix("torch.") for each in _DTYPES)
        raise TypeError(f"tensor {index} must be one of {names}, got {tensor.dtype}")
    if tensor.is_meta:
        raise ValueError(f"tensor {index} is on {tensor.device}: it has no values")
    if tensor.requires_grad and tensor.is_leaf and torch.is_grad_enabled():
        raise ValueError(
            f"tensor {index} requires gradients and would be overwritten: pass tensor.detach() or "
            "tensor.grad, or call under torch.no_grad()"
        )
    if not hasattr(state, "state_dict") or not hasattr(state, "numel"):
        raise TypeError(
            f"state {index} must be a gradwire.State, from gradwire.torch.init_state(codec, "
            f"tensor), got {_kind(state)}"
        )
    if state.numel != tensor.numel():
        raise ValueError(
            f"state {index} is for {state.numel} entries, tensor {index} has {tensor.numel()}"
        )
    shaped = codec.for_shape(tensor.shape)
    if not state.codec._codec.same_kind(shaped._codec):
        like = "codec" if shaped is codec else "codec.for_shape(tensor.shape)"
        raise ValueError(
            f"state {index} belongs to {state.codec!r}, got {shaped!r}: only ratio, k or threshold "
            f"may differ; make one with gradwire.torch.init_state({like}, tensor)"
        )


def _kind(value: object) -> str:
    return f"{value!r} ({type(value).__name__})" if value is None else f"a {type(value).__name__}"
