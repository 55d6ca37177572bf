"""Horovod's broadcasts, for tensors of all dtypes."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.optim import Optimizer
from torch.utils._pytree import tree_map_only

from gradwire import _validate
from gradwire.torch.horovod.arguments import process_set_of
from gradwire.torch.transport.horovod import check_initialized, library

__all__ = ["broadcast_optimizer_state", "broadcast_parameters"]


def broadcast_parameters(
    params: Mapping[str, Any] | Sequence[Any], root_rank: int, *, process_set: Any = None
) -> None:
    """Copy parameters from one rank to all others, as ``hvd.broadcast_parameters`` does.

    Horovod refuses bfloat16 and complex numbers; here every dtype goes. A collective.

    Parameters
    ----------
    params : mapping of str to torch.Tensor, or sequence
        A ``state_dict()``, tensors, or pairs of a name and a tensor. What is no tensor is left
        alone. The same on every rank.
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

    As ``hvd.broadcast_optimizer_state``, but also for states of bfloat16, and without a step that
    makes one. A collective of all ranks.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
    root_rank : int
        The rank to copy from.

    Raises
    ------
    TypeError, ValueError
        It is no optimizer, Horovod is not initialized, or there is no such rank.
    """
    check_initialized()
    if not isinstance(optimizer, Optimizer):
        raise TypeError(
            "broadcast_optimizer_state() takes a torch.optim.Optimizer, got a "
            f"{type(optimizer).__name__}"
        )
    root = _validate.integer("root_rank", root_rank, low=0, high=library.size() - 1)
    # By the host: ranks have devices of their own.
    mine = tree_map_only(torch.Tensor, torch.Tensor.cpu, optimizer.state_dict())
    state = library.broadcast_object(mine, root, name="gradwire.optimizer")
    optimizer.load_state_dict(state)  # on the root, too: loading may change types
