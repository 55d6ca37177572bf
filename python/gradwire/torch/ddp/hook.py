"""The communication hook. DDP never unregisters a hook, so this one can be switched off instead."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed import GradBucket  # type: ignore[attr-defined]  # it exists, unlisted
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

if TYPE_CHECKING:
    from gradwire.torch.ddp.handle import Handle

__all__ = ["Switch", "in_backward", "raise_after_backward"]


class Switch:
    """The hook's state, which DDP keeps: refers to the attached handle, if any.

    A deep or pickled copy of a model starts detached: it has no threads or process groups.
    """

    def __init__(self, process_group: dist.ProcessGroup) -> None:
        self.process_group = process_group
        self.handle: Handle | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _detached, ()


def _detached() -> None:
    """Return the switch of a copied model: none."""


def gradwire_hook(state: Switch, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average a bucket over all ranks: compressed if attached and not paused, else by all-reduce.

    It only enqueues. Collectives started from callbacks would run in the order in which buckets
    happen to complete, which differs between ranks.
    """
    handle = state.handle
    if handle is None or handle._submission.stands_aside():
        return allreduce_hook(state.process_group, bucket)
    return handle._submission.submit(bucket)


def in_backward() -> bool:
    """Tell whether autograd called the hook; `join` calls it for ranks without inputs."""
    return torch._C._current_graph_task_id() != -1


def raise_after_backward(verdict: Callable[[], BaseException | None]) -> None:
    """Make the current backward pass raise what ``verdict`` returns, after it has completed.

    An exception in a bucket's future would abort DDP's own final callback half-way: the reducer
    would carry the bookkeeping of this step into the next one, and the replicas would drift apart.
    So this raises after that callback. Autograd runs callbacks in the order in which they were
    queued. DDP queues its own after the hook of the last bucket has returned, and a second model
    in the same backward pass may queue its own from within a callback; so this callback moves
    itself to the end of the queue twice.
    """
    queue = torch.autograd.Variable._execution_engine.queue_callback

    def end() -> None:
        error = verdict()
        if error is not None:
            raise error

    queue(lambda: queue(lambda: queue(end)))
