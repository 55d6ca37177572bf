"""Elastic training: keeps residuals when the ranks change."""

import functools
from typing import Any

import torch

from gradwire.torch.horovod.attachment import attach
from gradwire.torch.horovod.broadcasting import broadcast_optimizer_state, broadcast_parameters
from gradwire.torch.horovod.optimizer import Distributed
from gradwire.torch.transport.horovod import HostsUpdated, library

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
        for each in self._handlers.values():
            if isinstance(each.value, torch.nn.Module | torch.optim.Optimizer):
                each.sync = functools.partial(_sync, each)

    def save(self) -> None:
        """Keep a copy of everything. Call `commit` instead, which calls this."""
        super().save()
        self._merged = {}
        self._residuals = {
            at: each.handle.state_dict()
            for at, each in enumerate(self._distributed())
            if each.handle is not None
        }

    def restore(self) -> None:
        """Return to the last saved state. Residuals follow in `sync`."""
        for each in self._distributed():
            each._let_go()
        super().restore()

    def sync(self) -> None:
        """Continue on all ranks from the state of rank 0, with a share of all residuals each."""
        super().sync()
        for at, each in enumerate(self._distributed()):
            self._sync_residuals(at, each)
        self._merged = {}

    def check_host_updates(self) -> None:
        """Raise Horovod's interrupt if ranks are about to join or leave."""
        try:
            super().check_host_updates()
        except HostsUpdated as interrupt:
            # Residuals are added up while all ranks are there, those that are to leave, too.
            for at, each in enumerate(self._distributed()):
                if each.handle is not None and each.handle.attached:
                    self._merged[at] = each.handle.merged_state_dict()
                each._let_go()
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
        found = handle.merged_state_dict(mine)
        if found:
            handle.load_state_dict(found)
            self._residuals[at] = handle.state_dict()

    def _distributed(self) -> list[Distributed]:
        """Return the optimizers of this state that gradwire has distributed."""
        values = [each.value for each in self._handlers.values()]
        return [each for each in values if isinstance(each, Distributed) and each._settings]


def _sync(handler: Any) -> None:
    """Copy a model, or the state of an optimizer, from rank 0."""
    if isinstance(handler.value, torch.nn.Module):
        broadcast_parameters(handler.value.state_dict(), 0)
    else:
        broadcast_optimizer_state(handler.value, 0)
