"""Horovod's broadcasts, for tensors of all dtypes."""

import io
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.optim import Optimizer

from gradwire import _validate
from gradwire.torch.engine.consensus import run_on_all
from gradwire.torch.transport.horovod import HorovodTransport, check_initialized, library

_PIECE = 1 << 28  # bytes of a broadcast


def process_set_of(process_set: Any) -> Any:
    """Return the process set, by default of all ranks; raise if Horovod does not know it."""
    if process_set is None:
        return library.global_process_set
    if process_set.process_set_id is None:
        raise ValueError(
            f"Horovod does not know the {process_set}: pass it to hvd.init(process_sets=[...]), or "
            "to hvd.add_process_set()"
        )
    return process_set


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
    else:
        named = [
            each if isinstance(each, tuple) else (str(at), each) for at, each in enumerate(params)
        ]
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
    ValueError
        Horovod is not initialized, there is no such rank, or it cannot save the state.
    """
    check_initialized()
    root = _validate.integer("root_rank", root_rank, low=0, high=library.size() - 1)
    channel = HorovodTransport(library.global_process_set, None).make()
    file = io.BytesIO()

    def save() -> int:
        if channel.rank == root:
            torch.save(optimizer.state_dict(), file)
        return file.tell()

    size = run_on_all(channel, save, "broadcast")[root]
    saved = bytearray(file.getvalue() or size)
    for each in torch.split(torch.frombuffer(saved, dtype=torch.uint8), _PIECE):
        channel.broadcast(each, root).wait()
    # On the root, too: loading may change types. By the host: ranks have devices of their own.
    state = torch.load(io.BytesIO(saved), map_location="cpu", weights_only=True)
    optimizer.load_state_dict(state)
