"""The communication hook. DDP never unregisters a hook, so this one can be switched off instead."""

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import GradBucket  # type: ignore[attr-defined]  # it exists, unlisted
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from gradwire.torch.ddp.submission import Submission

__all__ = ["Switch", "gradwire_hook"]


class Switch:
    """The hook's state, which DDP keeps: where buckets are submitted, if a codec is attached.

    A deep or pickled copy of a model starts detached: it has no threads or process groups.
    """

    def __init__(self, process_group: dist.ProcessGroup) -> None:
        self.process_group = process_group
        self.submission: Submission | None = None
        # The handle, which lives as long as it is attached, whether or not the caller keeps it.
        self._holder: object = None

    def on(self, process_group: dist.ProcessGroup, submission: Submission, holder: object) -> None:
        """Submit buckets from now on."""
        self.process_group, self.submission, self._holder = process_group, submission, holder

    def off(self) -> None:
        """Leave buckets to plain all-reduce from now on."""
        self.submission = self._holder = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _detached, ()


def _detached() -> None:
    """Return the switch of a copied model: none."""


def gradwire_hook(state: Switch, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average a bucket over all ranks: compressed if attached and not paused, else by all-reduce.

    It only enqueues. Collectives started from callbacks would run in the order in which buckets
    happen to complete, which differs between ranks.
    """
    submission = state.submission
    if submission is None:
        return allreduce_hook(state.process_group, bucket)
    return submission.average(bucket, state.process_group)
