"""The communication hook. DDP takes one for good, so it can be switched, but not removed."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed import GradBucket  # type: ignore[attr-defined]  # it is there, unlisted
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

if TYPE_CHECKING:
    from gradwire.torch.ddp.handle import Handle

__all__ = ["Switch", "in_backward", "raise_after_backward"]


class Switch:
    """What DDP keeps as the hook's state: leads to the handle that is attached, if any.

    A copy of a model, deep or pickled, starts detached: threads and process groups stay behind.
    """

    def __init__(self, process_group: dist.ProcessGroup) -> None:
        self.process_group = process_group
        self.handle: Handle | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _detached, ()


def _detached() -> None:
    """Return what a copied model has in the place of its switch."""


def gradwire_hook(state: Switch, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average a bucket over all ranks: compressed if attached and not paused, else plainly.

    It only enqueues. Collectives started from callbacks would run in the order in which buckets
    happen to complete, which is not the same on all ranks.
    """
    handle = state.handle
    if handle is None or handle._stands_aside():
        return allreduce_hook(state.process_group, bucket)
    return handle._submit(bucket)


def in_backward() -> bool:
    """Tell whether autograd called the hook; `join` calls it for ranks without inputs."""
    return torch._C._current_graph_task_id() != -1


def raise_after_backward(verdict: Callable[[], BaseException | None]) -> None:
    """Let the current backward pass raise what ``verdict`` returns once it has run to its end.

    An exception in a bucket's future would end DDP's own last callback half-way: the reducer would
    keep bookkeeping of this step for the next one, and replicas would drift apart. So this raises
    after that callback. Autograd runs callbacks in the order in which they were queued; DDP queues
    its own after the hook of the last bucket has returned, and a second model in the same backward
    pass may queue its own from within a callback, hence two times at the end of the queue.
    """
    queue = torch.autograd.Variable._execution_engine.queue_callback

    def end() -> None:
        error = verdict()
        if error is not None:
            raise error

    queue(lambda: queue(lambda: queue(end)))
