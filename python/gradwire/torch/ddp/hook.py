"""The communication hook. DDP takes one for good, so it can be switched, but not removed."""

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed import GradBucket  # type: ignore[attr-defined]  # it is there, unlisted
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

if TYPE_CHECKING:
    from gradwire.torch.ddp.handle import Handle

__all__ = ["Switch"]


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
    """Average a bucket over all ranks: compressed if attached, else by a plain all-reduce.

    It only enqueues. Collectives started from callbacks would run in the order in which buckets
    happen to complete, which is not the same on all ranks.
    """
    if state.handle is None:
        return allreduce_hook(state.process_group, bucket)
    return state.handle._submit(bucket).then(_raise_or_return)


def _raise_or_return(future: torch.futures.Future[Any]) -> torch.Tensor:
    outcome: torch.Tensor | BaseException = future.value()
    if isinstance(outcome, BaseException):
        # A copy without history: a traceback would keep the bucket alive.
        raise outcome.with_traceback(None)
    return outcome
