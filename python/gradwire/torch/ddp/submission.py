"""What the hook calls: the buckets of each backward pass are submitted, or refused."""

import functools

import torch
import torch.distributed as dist
from torch.distributed import GradBucket  # type: ignore[attr-defined]  # it exists, unlisted
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from gradwire.torch import backends
from gradwire.torch.ddp.backward import in_backward, raise_after_backward
from gradwire.torch.engine.backward import BackwardPasses
from gradwire.torch.engine.step import Step
from gradwire.torch.errors import ExchangeError, fresh

__all__ = ["Submission"]


class Submission:
    """Submits the buckets of DDP's backward passes.

    Parameters
    ----------
    passes : BackwardPasses
    whole : bool
        As in `Worker`.
    """

    def __init__(self, passes: BackwardPasses, *, whole: bool) -> None:
        self._passes = passes
        self._whole = whole
        self._refusal: BaseException | None = None
        self._next_index = 0
        self._aside = False

    def average(
        self, bucket: GradBucket, group: dist.ProcessGroup
    ) -> "torch.futures.Future[torch.Tensor]":
        """Average a bucket over all ranks: compressed, or by DDP's own all-reduce."""
        if self.stands_aside(bucket):
            return allreduce_hook(group, bucket)
        return self.submit(bucket)

    def stands_aside(self, bucket: GradBucket) -> bool:
        """Tell whether DDP must average by itself; if so, record the pass as the last one."""
        passes, index = self._passes, bucket.index()
        if passes.broken is not None:
            return False
        if not passes.are_paused:
            if index == 0 or index < self._next_index:
                self._aside = in_backward() and passes.are_stale()
            if not self._aside:
                return False
            self._next_index = index + 1
        passes.averaged(bucket.parameters())
        return True

    def submit(self, bucket: GradBucket) -> "torch.futures.Future[torch.Tensor]":
        """Enqueue a bucket and return the future of its average."""
        passes, index = self._passes, bucket.index()
        if passes.broken is not None:
            first = passes.broken
            text = f"gradwire stopped after an earlier error: {first}"
            return self._refuse(bucket, ExchangeError(text, getattr(first, "rank", None)))
        # A pass that is refused stays so: why may be told only once.
        ended = self._refusal is None and passes.ended
        if ended or index < self._next_index or index == 0:
            self._refusal = passes.begin(shadow=not in_backward())
        self._next_index = index + 1
        if self._refusal is not None:
            return self._refuse(bucket, self._refusal)
        future, step = passes.submit(
            bucket.parameters(), bucket.buffer(), last=bucket.is_last(), placed=in_backward()
        )
        if not in_backward():
            return future.then(functools.partial(_raise_broken, step))
        if self._ends(bucket):
            raise_after_backward(functools.partial(passes.ending(), step))
        return future

    def _refuse(
        self, bucket: GradBucket, error: BaseException
    ) -> "torch.futures.Future[torch.Tensor]":
        """Exchange nothing, and let the backward pass raise an error."""
        if not in_backward():
            raise error
        # Not raised here, which would leave DDP stuck half-way through its backward pass.
        if self._ends(bucket):
            raise_after_backward(lambda: error)
        buffer = bucket.buffer()
        refused = backends.backend_for(buffer).bucket(buffer)
        refused.resolve(poisoned=True)
        return refused.future

    def _ends(self, bucket: GradBucket) -> bool:
        """Tell whether DDP may end its part of the backward pass with this bucket."""
        return bucket.is_last() or not self._whole


def _raise_broken(step: Step, future: "torch.futures.Future[torch.Tensor]") -> torch.Tensor:
    """Let `join` end on a rank without inputs. After a GradientError the others may go on."""
    if isinstance(step.error, ExchangeError):
        raise fresh(step.error)
    return future.value()
