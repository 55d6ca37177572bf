"""The exchange by all-gather for memories in one buffer: nothing changes before a step is good.

A memory in one buffer cannot go back. So a bucket's frames are sent while its memories stay as
they are, and the gradients stay in the bucket. What has arrived is decoded once to other memory: to
know that it can be, and whether it overflows. When all buckets of a step are known to be good, on
all ranks alike, the memories are written, from the gradients and the frames of this rank, and then
the averages take the place of the gradients.
"""

import itertools
from dataclasses import replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from gradwire.torch.engine.step import BucketTask, InFlightBucket
from gradwire.torch.exchange.all_gather import AllGatherExchange, Contents, unused

__all__ = ["DeferredAllGather"]


class DeferredAllGather(AllGatherExchange):
    """Gathers the frames of all ranks, and completes the buckets of a step together."""

    postpones: ClassVar[bool] = True

    def _combine(self, flight: InFlightBucket, fronts: NDArray[np.uint8]) -> None:
        contents, job = flight.contents, flight.job
        assert isinstance(contents, Contents)
        self._slots.give(contents.slot, job.bucket.used(contents.slot))  # it was gathered, too
        try:
            self._read(flight, contents, fronts)
            trial = replace(job, bucket=job.bucket.scratch())
            self._decode(trial, contents, counts=False)
            self._check(trial)
        except BaseException:
            self._give(job, contents)
            raise

    def _give(self, job: BucketTask, contents: Contents) -> None:
        self._gathers.give(contents.gathered, job.bucket.used(contents.gathered))

    def _complete(self, flight: InFlightBucket) -> None:
        contents, job = flight.contents, flight.job
        assert isinstance(contents, Contents)
        self._settle(job, contents)
        self._decode(job, contents)
        job.bucket.store()
        self._give(job, contents)

    def _settle(self, job: BucketTask, contents: Contents) -> None:
        layout, plan = job.layout, contents.plan
        sizes = contents.readings[self.rank].sizes
        first = self.rank * plan.nbytes + plan.frames_at
        starts = list(itertools.accumulate(sizes[:-1], initial=first))
        used = np.flatnonzero(~unused(contents.readings)).tolist()
        if used:
            job.bucket.commit(
                [layout.compressed[i].state for i in used],
                [end for i in used for end in layout.ends[2 * i : 2 * i + 2]],
                contents.gathered,
                [starts[i] for i in used],
                [sizes[i] for i in used],
                job.scale,
            )
