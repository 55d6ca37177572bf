"""Horovod's broadcasts, for tensors of all dtypes."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.optim import Optimizer

from gradwire import _validate
from gradwire.torch.horovod.arguments import process_set_of
from gradwire.torch.transport.horovod import HorovodTransport, check_initialized, library


def broadcast_parameters(
    params: Mapping[str, Any] | Sequence[Any], root_rank: int, *, process_set: Any = None
) -> None:
    """Copy parameters from one rank to all others, as ``hvd.broadcast_parameters`` does.

    Horovod refuses bfloat16 and complex numbers; this function supports every dtype. A collective.

    Parameters
    ----------
    params : mapping of str to torch.Tensor, or sequence
        A ``state_dict()``, tensors, or pairs of a name and a tensor. Values that are not tensors
        are ignored. The same on every rank.
    root_rank : int
        The rank to copy from, among all ranks.
    process_set : horovod.torch.ProcessSet, optional
        Copy to these ranks only.

    Raises
    ------
    TypeError, ValueError
        An argument is wrong, or Horovod is not initialized.
    """
    check_initialized()
    root = _validate.integer("root_rank", root_rank, low=0, high=library.size() - 1)
    if isinstance(params, Mapping):
        named = sorted(params.items())
    elif isinstance(params, Sequence):
        named = [
            each if isinstance(each, tuple) else (str(at), each) for at, each in enumerate(params)
        ]
    else:
        raise TypeError(
            f"broadcast_parameters() takes a state_dict() or a list, got a {type(params).__name__}"
        )
    members = process_set_of(process_set)
    started = []
    for name, each in named:
        if isinstance(each, torch.Tensor) and each.numel():
            found = each.detach().contiguous()
            handle = library.broadcast_async_(
                found.view(-1).view(torch.uint8), root, f"gradwire.of.{name}", process_set=members
            )
            started.append((each.detach(), found, handle))
    for each, found, handle in started:
        library.synchronize(handle)
        if found.data_ptr() != each.data_ptr():
            each.copy_(found)


def broadcast_optimizer_state(optimizer: Optimizer, root_rank: int) -> None:
    """Copy the state of an optimizer, and its options, from one rank to all others.

    As ``hvd.broadcast_optimizer_state``, but it supports bfloat16, and makes no step to create a
    state. A collective of all ranks.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
    root_rank : int
        The rank to copy from.

    Raises
    ------
    TypeError, ValueError
        The argument is not an optimizer, Horovod is not initialized, or there is no such rank.
    ExchangeError
        On every rank: the state holds anything but tensors, numbers, text and collections.
    """
    check_initialized()
    if not isinstance(optimizer, Optimizer):
        raise TypeError(
            "broadcast_optimizer_state() takes a torch.optim.Optimizer, got a "
            f"{type(optimizer).__name__}"
        )
    root = _validate.integer("root_rank", root_rank, low=0, high=library.size() - 1)
    channel = HorovodTransport(library.global_process_set, None).make()
    tensors: list[torch.Tensor] = []
    told = _describe(optimizer.state_dict(), tensors) if channel.rank == root else None
    told = channel.all_gather_object(told)[root]
    given = iter(tensors)

    def tensor(dtype: str, shape: list[int]) -> torch.Tensor:
        # By the host: ranks have devices of their own.
        found = next(given, None)
        values = torch.empty(shape, dtype=_DTYPES[dtype], device="cpu")
        if found is not None:
            values.copy_(found)
        if values.numel():
            channel.broadcast(values.view(-1).view(torch.uint8), root).wait()
        return values

    # On the root, too: loading may change types.
    optimizer.load_state_dict(_read(told, tensor))


_DTYPES = {str(each): each for each in vars(torch).values() if isinstance(each, torch.dtype)}


def _describe(value: Any, tensors: list[torch.Tensor]) -> Any:
    """Return a state as JSON, with tags for types that JSON lacks; collect its tensors."""
    match value:
        case torch.Tensor():
            tensors.append(value.detach())
            return {"tensor": [str(value.dtype), list(value.shape)]}
        case dict():
            return {"dict": [[_describe(each, tensors) for each in item] for item in value.items()]}
        case tuple():
            return {"tuple": [_describe(each, tensors) for each in value]}
        case list():
            return [_describe(each, tensors) for each in value]
        case float() if not math.isfinite(value):
            return {"float": str(value)}
        case _:
            return value  # text, a number, a bool or None: all else is refused as it is sent


def _read(told: Any, tensor: Callable[[str, list[int]], torch.Tensor]) -> Any:
    """Return the state that `_describe` described on the root."""
    if isinstance(told, list):
        return [_read(each, tensor) for each in told]
    if not isinstance(told, dict):
        return told
    ((kind, found),) = told.items()
    if kind == "tensor":
        return tensor(*found)
    if kind == "float":
        return float(found)
    every = [_read(each, tensor) for each in found]
    return tuple(every) if kind == "tuple" else dict(every)
