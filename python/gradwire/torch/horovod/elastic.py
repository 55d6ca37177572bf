"""What ranks take over from others: Horovod's broadcasts, and elastic training with residuals."""

import functools
import io
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.optim import Optimizer

from gradwire import _validate
from gradwire.torch.checkpoint.gather import run_on_all
from gradwire.torch.horovod.optimizer import Distributed, attach, process_set_of
from gradwire.torch.transport.horovod import (
    HorovodTransport,
    HostsUpdated,
    check_initialized,
    library,
)

_PIECE = 1 << 28  # bytes of a broadcast

_TorchState: Any = library.elastic.TorchState


class ElasticState(_TorchState):  # type: ignore[misc]  # it has no types
    """The state of an elastic run, with the residuals of its distributed optimizers.

    Replaces ``hvd.elastic.TorchState``, with the same arguments and methods, under
    ``hvd.elastic.run``. ``commit()`` also keeps a copy of this rank's residuals. When ranks join or
    leave, the sum of residuals is divided among all ranks; those of a dead rank are lost.

    Parameters
    ----------
    model : torch.nn.Module, optional
    optimizer : torch.optim.Optimizer, optional
        Made by `DistributedOptimizer`, or any other.
    **kwargs
        More models and optimizers, and other values to keep as attributes of the state.
    """

    def __init__(self, model: Any = None, optimizer: Any = None, **kwargs: Any) -> None:
        # By place in `_distributed`, for those that have any.
        self._residuals: dict[int, dict[str, Any]] = {}
        self._merged: dict[int, dict[str, Any]] = {}
        super().__init__(model=model, optimizer=optimizer, **kwargs)
        # Horovod's own make a step on ranks without a state, after the model was copied.
        for handler in self._handlers.values():
            if isinstance(handler.value, torch.nn.Module | torch.optim.Optimizer):
                handler.sync = functools.partial(_sync, handler)

    def save(self) -> None:
        """Keep a copy of everything. Call `commit` instead, which calls this."""
        super().save()
        self._merged = {}
        self._residuals = {
            at: optimizer.handle.state_dict()
            for at, optimizer in enumerate(self._distributed())
            if optimizer.handle is not None
        }

    def restore(self) -> None:
        """Return to the last saved state. Residuals follow in `sync`."""
        for optimizer in self._distributed():
            optimizer._let_go()
        super().restore()

    def sync(self) -> None:
        """Continue on all ranks from the state of rank 0, with a share of all residuals each."""
        super().sync()
        for at, optimizer in enumerate(self._distributed()):
            self._sync_residuals(at, optimizer)
        self._merged = {}

    def check_host_updates(self) -> None:
        """Raise Horovod's interrupt if ranks are about to join or leave."""
        try:
            super().check_host_updates()
        except HostsUpdated as interrupt:
            # Residuals are added up while all ranks are there, those that are to leave, too.
            for at, optimizer in enumerate(self._distributed()):
                if optimizer.handle is not None and optimizer.handle.attached:
                    self._merged[at] = optimizer.handle.merged_state_dict()
                optimizer._let_go()
            # All ranks have to meet in sync(), also if some have only left.
            raise HostsUpdated(False) from interrupt

    def _sync_residuals(self, at: int, optimizer: Distributed) -> None:
        if not optimizer._settings.process_set.included():
            return
        if optimizer._entry is None or not optimizer._entry.is_open:  # by the ranks there are now
            optimizer._let_go()
            attach(optimizer, optimizer._settings)
        handle = optimizer.handle
        assert handle is not None  # since it is attached
        # The sum of all is in several places, and counts once.
        has = torch.tensor([at in self._merged], dtype=torch.uint8)
        # Named: Horovod counts what has no name, and a rank may have sent more of it than another.
        every = library.allgather(has, name=f"gradwire.elastic.{at}.holders")
        holders = every.nonzero().flatten().tolist()
        if holders:
            mine = self._merged[at] if library.rank() == holders[0] else {}
        else:
            mine = self._residuals.get(at, {})
        merged = handle.merged_state_dict(mine)
        if merged:
            handle.load_state_dict(merged)
            self._residuals[at] = handle.state_dict()

    def _distributed(self) -> list[Distributed]:
        values = [handler.value for handler in self._handlers.values()]
        return [value for value in values if isinstance(value, Distributed) and value._settings]


def _sync(handler: Any) -> None:
    """Copy a model, or the state of an optimizer, from rank 0."""
    if isinstance(handler.value, torch.nn.Module):
        broadcast_parameters(handler.value.state_dict(), 0)
    else:
        broadcast_optimizer_state(handler.value, 0)


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
            value if isinstance(value, tuple) else (str(at), value)
            for at, value in enumerate(params)
        ]
    members = process_set_of(process_set)
    started = []
    for name, value in named:
        if isinstance(value, torch.Tensor) and value.numel():
            contiguous = value.detach().contiguous()
            handle = library.broadcast_async_(
                contiguous.view(-1).view(torch.uint8),
                root,
                f"gradwire.of.{name}",
                process_set=members,
            )
            started.append((value.detach(), contiguous, handle))
    for value, contiguous, handle in started:
        library.synchronize(handle)
        if contiguous.data_ptr() != value.data_ptr():
            value.copy_(contiguous)


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
    for piece in torch.split(torch.frombuffer(saved, dtype=torch.uint8), _PIECE):
        channel.broadcast(piece, root).wait()
    # On the root, too: loading may change types. By the host: ranks have devices of their own.
    state = torch.load(io.BytesIO(saved), map_location="cpu", weights_only=True)
    optimizer.load_state_dict(state)
