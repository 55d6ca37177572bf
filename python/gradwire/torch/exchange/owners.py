"""Parts of frames to the owners of ranges, and their sums to all ranks: sparse or quantized.

`gradwire.exchange.ReduceScatter` and `gradwire.exchange.QuantizedAllReduce` differ only in what
owners send of the sums, which `merge_bucket` knows from the codec. A bucket takes four collectives,
the first started in the sending thread, the others one after another in the receiving thread and in
a channel of their own:

1. an all-to-all of fronts, of fixed length: how each rank fared, which gradients were zero, and how
   many bytes follow;
2. an all-to-all of the parts, which have just these bytes;
3. an all-gather of how each owner fared, and of how many bytes it has made;
4. an all-to-all, in which every owner sends the same to all, of just these bytes.

Every rank hears of a failure before the collective that the failing rank would have no data for;
then the ranks exchange reasons instead, and raise the same error.
"""

import time
from collections import deque
from dataclasses import dataclass, field
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray

from gradwire import _native
from gradwire.errors import NonFiniteError
from gradwire.torch.engine.step import BucketTask, BufferPool, InFlightBucket
from gradwire.torch.errors import GradientError
from gradwire.torch.exchange import ownership as ranges
from gradwire.torch.exchange.base import ExchangeBase
from gradwire.torch.exchange.dense import (
    accumulator,
    mean_of,
    pack_dense,
    unpack_dense,
    wait,
)
from gradwire.torch.exchange.ownership import Owned, Ranges, Status
from gradwire.torch.exchange.reasons import share_reasons
from gradwire.torch.transport import Channel, LocalChannel

__all__ = ["OwnerExchange"]

_NOTHING = np.empty(0, np.uint8)


@dataclass(slots=True, eq=False)
class _Parts:
    """What goes to and fro for one bucket.

    Attributes
    ----------
    ranges : Ranges
    message : numpy.ndarray
        What goes to the owners, one after another: dense entries, and frames of parts.
    sizes : list of int
        Bytes for each owner.
    fronts : torch.Tensor
        What came ahead of their parts from all ranks.
    error : BaseException or None
        Why this rank has no message.
    unused : numpy.ndarray
        Parameters whose gradients are zero on every rank.
    merged : list of torch.Tensor
        What each owner has made, once it came.
    """

    ranges: Ranges
    message: NDArray[np.uint8]
    sizes: list[int]
    fronts: torch.Tensor
    error: BaseException | None = None
    unused: NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, np.bool_))
    merged: list[torch.Tensor] = field(default_factory=list)


class OwnerExchange(ExchangeBase):
    """Sends parts of frames to their owners, and what those make of the sums to all ranks.

    Parameters
    ----------
    channel : LocalChannel
        A channel with no other user, for the collectives of the sending thread.
    merging : LocalChannel
        Another one, for those of the receiving thread.
    check_result : bool
        As in `ExchangeBase`.
    """

    def __init__(self, channel: Channel, merging: Channel, *, check_result: bool) -> None:
        super().__init__(channel, {}, check_result=check_result)
        self._merging: LocalChannel | None = cast("LocalChannel", merging)
        self._frames = BufferPool()
        self._recent: deque[torch.Tensor] = deque(maxlen=8)  # see all_gather.py

    def close(self) -> None:
        """Release both channels, without closing them, and the memory of frames."""
        super().close()
        self._merging = None
        self._frames.clear()

    # The sending thread -----------------------------------------------------------------------

    def send(self, job: BucketTask, sequence: int) -> InFlightBucket:
        """Encode a bucket, cut its frames by owner, and send ahead how that went."""
        start = time.perf_counter()
        layout = job.layout
        divided = Ranges(layout, self.world_size)
        zero, error = np.zeros(len(layout.pieces), np.int64), None
        message, sizes = _NOTHING, None
        try:
            messages = self._cut(job, divided, zero)
            message, sizes = np.concatenate(messages), [each.size for each in messages]
        except BaseException as raised:  # of any kind: the other ranks wait for the front
            error = raised
        mine = torch.from_numpy(divided.fronts(layout, sequence, sizes, zero)).view(-1)
        fronts = torch.empty_like(mine)
        self.times.add("encode", start)
        self._recent += (mine, fronts)
        work = cast("LocalChannel", self.channel).all_to_all(fronts, mine)
        return InFlightBucket(
            job,
            sequence,
            works=(work,),
            contents=_Parts(divided, message, sizes or [], fronts.view(self.world_size, -1), error),
            room=mine.numel(),
            wire=mine.numel() - divided.front,
        )

    def _cut(
        self, job: BucketTask, divided: Ranges, zero: NDArray[np.int64]
    ) -> list[NDArray[np.uint8]]:
        """Return what goes to each owner: its dense entries, and then its parts."""
        layout = job.layout
        # Lengths are exact: no sizes are observed, and those that a checkpoint brings do not count.
        limits = [each.codec.max_encoded_len(each.numel) for each in layout.compressed]
        frames = self._frames.take(sum(limits), job.step.number, job.bucket)
        try:
            outcomes = self._encode(job, range(len(layout.pieces)), limits, frames)
            zero[:] = outcomes.zero
            sizes = outcomes.nbytes.tolist()
            parts = _native.split_bucket(
                frames.numpy(), sizes, divided.bounds, divided.owners, self.world_size
            )
        finally:
            self._frames.give(frames)  # to this thread, which works in its own order
        layout.counters.encoded(layout.rows, outcomes, outcomes.nbytes)
        if not layout.runs:
            return parts
        dense = torch.empty(layout.dense_numel, dtype=layout.dtype)
        pack_dense(job, dense)
        values, size = dense.view(torch.uint8).numpy(), dense.element_size()
        bounds = [bound * size for bound in divided.dense]
        return [
            np.concatenate((values[bounds[rank] : bounds[rank + 1]], part))
            for rank, part in enumerate(parts)
        ]

    # The receiving thread ---------------------------------------------------------------------

    def _look(self, flight: InFlightBucket) -> NDArray[np.uint8]:
        """Exchange the parts, merge what this rank owns, and exchange that."""
        parts, job = flight.contents, flight.job
        assert isinstance(parts, _Parts)
        assert self._merging is not None
        fronts = parts.fronts.numpy()
        failed, lengths, parts.unused = ranges.read_fronts(fronts, job.layout, flight.sequence)
        if failed:
            share_reasons(self._merging, job.layout, parts.error)
        limits = parts.ranges.limits(job.bucket.itemsize)
        ranges.check_lengths(lengths, [limits[self.rank]] * self.world_size)
        own, sent = parts.sizes[self.rank], sum(parts.sizes)
        received = self._swap(flight, parts.message, parts.sizes, lengths)
        self._count(flight, sent, sent - own)
        parts.message = _NOTHING
        error, mine, copies = None, _NOTHING, _NOTHING
        try:
            job.step.undo([job.layout.compressed[index] for index in np.flatnonzero(parts.unused)])
            mine = self._merge(job, parts, received)
            copies = np.tile(mine, self.world_size)
        except BaseException as raised:  # of any kind: the other ranks wait for the result
            error = raised
        status = Status.OK if error is None else Status.FAILED
        told = torch.from_numpy(ranges.result(status, mine.size))
        results = told.new_empty(self.world_size * told.numel())
        self._recent += (told, results)
        wait(self._merging.all_gather(results, told), flight.sequence)
        rows: NDArray[np.uint8] = results.view(self.world_size, -1).numpy()
        failed, lengths = ranges.read_results(rows)
        if failed:
            share_reasons(self._merging, job.layout, error, "merge what it owns")
        ranges.check_lengths(lengths, limits)
        parts.merged = self._swap(flight, copies, [mine.size] * self.world_size, lengths)
        room, wire = self.world_size * mine.size, (self.world_size - 1) * mine.size
        wire += (self.world_size - 1) * told.numel()
        self._count(flight, told.numel() + room, wire, collectives=2)
        return rows

    def _swap(
        self,
        flight: InFlightBucket,
        message: NDArray[np.uint8],
        sizes: list[int],
        lengths: list[int],
    ) -> list[torch.Tensor]:
        """Send each rank so many bytes of a message; return theirs, which have these lengths."""
        assert self._merging is not None
        mine = torch.from_numpy(message)
        every = mine.new_empty(sum(lengths))
        self._recent += (mine, every)
        wait(self._merging.all_to_all(every, mine, lengths, sizes), flight.sequence)
        return list(torch.split(every, lengths))

    @staticmethod
    def _count(flight: InFlightBucket, room: int, wire: int, collectives: int = 1) -> None:
        flight.room += room
        flight.wire += wire
        flight.collectives += collectives

    def _merge(
        self, job: BucketTask, parts: _Parts, received: list[torch.Tensor]
    ) -> NDArray[np.uint8]:
        """Return what this rank makes of what it owns: means of dense entries, and frames."""
        layout, divided = job.layout, parts.ranges
        numel = divided.dense[self.rank + 1] - divided.dense[self.rank]
        nbytes = numel * job.bucket.itemsize
        owned = divided.owned[self.rank]
        frames, merged, error = _native.merge_bucket(
            [message.numpy() for message in received],
            [nbytes] * self.world_size,
            [layout.compressed[part.index].codec._codec for part in owned],
            [layout.compressed[part.index].state for part in owned],
            [end for part in owned for end in (part.start, part.stop)],
            [bool(parts.unused[part.index]) for part in owned],
        )
        if isinstance(error, NonFiniteError):
            part = owned[merged.size // 3]
            name = layout.compressed[part.index].name
            raise GradientError(error.count, part.start + error.first, name, -1) from error
        if error is not None:
            raise error
        if not numel:
            return frames
        total = torch.zeros(numel, dtype=accumulator(layout.dtype))
        for message in received:
            # A copy: what follows dense entries of another rank may have put these anywhere.
            total += torch.from_numpy(message[:nbytes].numpy().copy()).view(layout.dtype)
        mean = mean_of(total, self.world_size).to(layout.dtype)
        return np.concatenate((mean.view(torch.uint8).numpy(), frames))

    def _combine(self, flight: InFlightBucket, fronts: NDArray[np.uint8]) -> None:
        """Decode what all owners have made."""
        del fronts
        parts, job = flight.contents, flight.job
        assert isinstance(parts, _Parts)
        layout, bounds = job.layout, parts.ranges.dense
        means = []
        for rank, message in enumerate(parts.merged):
            nbytes = (bounds[rank + 1] - bounds[rank]) * job.bucket.itemsize
            means.append(message[:nbytes])
            self._decode(job, parts, rank, message, nbytes)
        if layout.runs:
            start = time.perf_counter()
            unpack_dense(job, torch.cat(means).view(layout.dtype), start)

    def _decode(
        self, job: BucketTask, parts: _Parts, rank: int, message: torch.Tensor, start: int
    ) -> None:
        """Write the averages of what a rank owns."""
        layout = job.layout
        owned: list[Owned] = parts.ranges.owned[rank]
        unused = [bool(parts.unused[part.index]) for part in owned]
        there = unused.count(False)
        sizes = iter(ranges.frame_sizes(message.numpy(), start, there, rank))
        if not owned:
            return
        at = [layout.pieces[part.index].start for part in owned]
        nanoseconds = job.bucket.average(
            message,
            [start],
            [[0 if skipped else next(sizes) for skipped in unused]],
            [
                end
                for first, part in zip(at, owned, strict=True)
                for end in (first + part.start, first + part.stop)
            ],
            unused,
            False,
            job.scale,
            ranks=self.world_size,
        )
        layout.counters.decoded(layout.rows[[part.index for part in owned]], nanoseconds)
