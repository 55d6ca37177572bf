"""The backward pass that the hook runs in."""

from collections.abc import Callable

import torch

__all__ = ["in_backward", "raise_after_backward"]


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
