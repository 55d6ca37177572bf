"""What the hook calls with ``"auto"``: buckets are submitted, or averaged plainly."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import GradBucket  # type: ignore[attr-defined]  # it exists, unlisted

from gradwire.torch.auto import AutoController
from gradwire.torch.ddp.backward import in_backward
from gradwire.torch.ddp.submission import Submission
from gradwire.torch.engine.backward import BackwardPasses

__all__ = ["AutomaticSubmission"]


class AutomaticSubmission(Submission):
    """Submits the buckets that the codec is for, and leaves the others to an all-reduce.

    Parameters
    ----------
    passes : BackwardPasses
    pilot : AutoController
    whole : bool
        As in `Worker`.
    """

    def __init__(self, passes: BackwardPasses, pilot: AutoController, *, whole: bool) -> None:
        super().__init__(passes, whole=whole)
        self._pilot = pilot
        self._at = -1
        self._error: BaseException | None = None
        self._stale = False

    def average(
        self, bucket: GradBucket, group: dist.ProcessGroup
    ) -> "torch.futures.Future[torch.Tensor]":
        """Average a bucket over all ranks."""
        passes, pilot, index = self._passes, self._pilot, bucket.index()
        if passes.broken is not None or passes.are_paused:
            pilot.interrupt()
            return super().average(bucket, group)
        if index == 0 or index <= self._at:
            self._stale = in_backward() and passes.are_stale()
            self._error = None
            if self._stale:
                pilot.interrupt()
            else:
                self._error = pilot.begin()
        self._at = index
        if self._error is not None:
            return self._refuse(bucket, self._error)
        parameters, buffer = bucket.parameters(), bucket.buffer()
        if not self._stale and pilot.take(parameters, buffer, last=bucket.is_last()):
            future = self.submit(bucket)
            pilot.submitted()
            return future
        passes.averaged(parameters, alone=self._stale or not pilot.codes)
        return self._average(parameters, buffer, group)

    def _average(
        self, parameters: Sequence[torch.Tensor], buffer: torch.Tensor, group: dist.ProcessGroup
    ) -> "torch.futures.Future[torch.Tensor]":
        """Start the all-reduce of a bucket, as DDP does it or in bfloat16."""
        half, ranks = self._pilot.halves(parameters), group.size()
        # Before it is summed, as DDP does it, and by a multiplication, as there.
        share = 1.0 / ranks
        if half:
            sent = torch.mul(buffer, share, out=torch.empty_like(buffer, dtype=torch.bfloat16))
        elif buffer.layout == torch.strided:
            sent = buffer.mul_(share)
        else:
            sent = buffer.div_(ranks)
        work: Any = dist.all_reduce(sent, group=group, async_op=True)
        ended = self._pilot.started(buffer, sent.element_size())

        def done(future: Any) -> torch.Tensor:
            value: torch.Tensor = future.value()[0]
            if half:
                value = buffer.copy_(value)
            if ended is not None:
                ended()
            return value

        found: torch.futures.Future[torch.Tensor] = work.get_future().then(done)
        return found
