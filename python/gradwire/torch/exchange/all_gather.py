"""The exchange by all-gather: encode into a slot, gather all slots, decode in rank order.

A slot has the same length on every rank: a header, one record per frame, the dense parameters in
their own dtype, the frames one after another, and unused room. A rank that cannot fill its slot
writes the error instead, so the collective always completes and all ranks learn the reason.
"""

import itertools
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from gradwire.torch.engine.bucket_contents import BucketContents
from gradwire.torch.engine.step import BucketTask, InFlightBucket
from gradwire.torch.errors import ExchangeError
from gradwire.torch.exchange import wire
from gradwire.torch.exchange.base import ExchangeBase
from gradwire.torch.exchange.dense import divide, pack_dense, sum_dtype, take_buffers, unpack_dense
from gradwire.torch.exchange.verification import Verification
from gradwire.torch.transport import Channel

_RECORD = np.dtype([("size", "<u8"), ("wanted", "<u8"), ("zero", "<u8")])
_ALIGN = 64


def _align(nbytes: int) -> int:
    return -(-nbytes // _ALIGN) * _ALIGN


@dataclass(frozen=True, slots=True)
class SlotLayout:
    """Sizes and offsets in the slots of one bucket, in bytes; the same on every rank."""

    limits: tuple[int, ...]  # of each frame
    records_at: int
    dense_at: int
    dense_end: int
    frames_at: int
    nbytes: int
    front: int  # before the dense parameters, and at least those of a message: errors are there

    @classmethod
    def of(cls, layout: BucketContents, itemsize: int) -> "SlotLayout":
        """Plan the slots of a bucket from the current limits."""
        limits = tuple([parameter.limit.nbytes for parameter in layout.compressed])
        records_at = _align(wire.HEADER_NBYTES)
        dense_at = _align(records_at + len(limits) * _RECORD.itemsize)
        dense_end = dense_at + layout.dense_numel * itemsize
        frames_at = _align(dense_end)
        nbytes = max(wire.MESSAGE_NBYTES, _align(frames_at + sum(limits)))
        front = max(wire.MESSAGE_NBYTES, dense_at)
        return cls(limits, records_at, dense_at, dense_end, frames_at, nbytes, front)

    def records(self, front: NDArray[np.uint8]) -> NDArray[np.void]:
        """Return a slot's records, one per frame: size, wanted size, whether the input was zero."""
        end = self.records_at + len(self.limits) * _RECORD.itemsize
        return front[self.records_at : end].view(_RECORD)

    def read_records(self, fronts: NDArray[np.uint8]) -> NDArray[np.void]:
        """Return the records of all ranks, one row per rank. No frame exceeds its limit."""
        records = np.stack([self.records(front) for front in fronts])
        bad = (records["size"] > np.array(self.limits, np.uint64)).any(axis=1)
        if bad.any():
            rank = int(bad.argmax())
            raise ExchangeError(f"a frame of rank {rank} exceeds its size limit", rank)
        return records


@dataclass(slots=True, eq=False)
class _Slots:
    """The slots of one bucket."""

    plan: SlotLayout
    slot: torch.Tensor  # this rank's
    gathered: torch.Tensor  # memory that begins with the slots of all ranks
    sizes: list[list[int]] = field(default_factory=list)  # bytes of each rank's frames
    # Pieces whose gradients are zero on every rank.
    unused: NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, np.bool_))

    def rows(self, ranks: int) -> torch.Tensor:
        """Return the slots of all ranks, one row per rank."""
        return self.gathered[: self.plan.nbytes * ranks].view(ranks, self.plan.nbytes)


class AllGatherExchange(ExchangeBase):
    """Gathers the frames of all ranks: one collective per bucket.

    Averages are of all ranks or of senders, as `gradwire.exchange.AllGather` says.
    """

    def __init__(
        self,
        channel: Channel,
        device_backends: Mapping[str, str],
        *,
        check_result: bool,
        second: Channel | None,
        verification: Verification | None,
        mean: Literal["ranks", "senders"],
    ) -> None:
        super().__init__(
            channel,
            device_backends,
            check_result=check_result,
            second=second,
            verification=verification,
        )
        self._mean = mean

    # The sending thread -----------------------------------------------------------------------

    def send(self, task: BucketTask, sequence: int) -> InFlightBucket:
        """Encode a bucket and start the all-gather of its slot."""
        start = time.perf_counter()
        plan = SlotLayout.of(task.layout, task.bucket.itemsize)
        (slot,), task = take_buffers(task, [(self._frames, plan.nbytes)])
        self._fill(task, plan, slot, sequence)
        self.times.add("encode", start)
        total = plan.nbytes * self.world_size
        (gathered,), failed = take_buffers(task, [(self._buffers, total)])
        if failed.error is not task.error:
            self._fill(failed, plan, slot, sequence)
        views = gathered[:total], slot[: plan.nbytes]
        self._keep(*views)
        work = self.channel.all_gather(*views)
        return InFlightBucket(
            task,
            sequence,
            works=(work,),
            contents=_Slots(plan, slot, gathered),
            room=plan.nbytes,
            wire=plan.nbytes * (self.world_size - 1),
        )

    def _fill(self, task: BucketTask, plan: SlotLayout, slot: torch.Tensor, sequence: int) -> None:
        layout = task.layout
        front = np.zeros(plan.front, np.uint8)
        try:
            pieces = range(len(layout.pieces))
            outcomes = self._encode(task, pieces, plan.limits, slot[plan.frames_at :])
            records = plan.records(front)
            records["size"] = outcomes.nbytes
            records["wanted"] = outcomes.wanted()
            records["zero"] = outcomes.zero
            layout.counters.encoded(layout.rows, outcomes, outcomes.nbytes)
            if layout.runs:
                pack_dense(task, slot[plan.dense_at : plan.dense_end].view(layout.dtype))
            checksum = self._checksums.last(layout)
            wire.write_verdict(front, layout.digest, sequence, checksum=checksum)
            front = front[: plan.dense_at]
        except BaseException as error:  # of any kind: the other ranks wait for this slot
            front[:] = 0
            message = front[: wire.MESSAGE_NBYTES]
            wire.write_verdict(message, layout.digest, sequence, wire.attributed(error, self.rank))
        task.bucket.write_header(slot, front)

    # The receiving thread ---------------------------------------------------------------------

    def _read_headers(self, flight: InFlightBucket) -> NDArray[np.uint8]:
        slots = flight.contents
        assert isinstance(slots, _Slots)
        return flight.task.bucket.read_headers(slots.rows(self.world_size), slots.plan.front)

    def _combine(self, flight: InFlightBucket, headers: NDArray[np.uint8]) -> None:
        slots, task = flight.contents, flight.task
        assert isinstance(slots, _Slots)
        try:
            self._read(flight, slots, headers)
            self._decode(task, slots)
            self._checksums.note(flight)
        finally:
            mark = task.bucket.used(slots.slot, slots.gathered)
            self._frames.give(slots.slot, mark)
            self._buffers.give(slots.gathered, mark)

    def _read(self, flight: InFlightBucket, slots: _Slots, headers: NDArray[np.uint8]) -> None:
        """Raise the error of any rank; undo the encodes of parameters that none has used."""
        task, layout = flight.task, flight.task.layout
        verdicts = wire.read_verdicts(headers, layout.digest, flight.sequence)
        wire.raise_first(verdicts)
        self._checksums.compare(layout, verdicts)
        records = slots.plan.read_records(headers)
        slots.sizes = records["size"].tolist()
        slots.unused = records["zero"].astype(bool).min(axis=0)
        # All limits come first: they must agree on all ranks whatever happens below.
        wanted = records["wanted"].max(axis=0).astype(np.int64)
        for parameter, nbytes in zip(layout.compressed, wanted.tolist(), strict=True):
            task.step.observe(parameter, nbytes)
        task.step.undo([layout.compressed[index] for index in np.flatnonzero(slots.unused)])

    def _decode(self, task: BucketTask, slots: _Slots, *, counts: bool = True) -> None:
        """Write the averages of all parameters; what is exchanged dense need not be counted."""
        plan, layout = slots.plan, task.layout
        rows = slots.rows(self.world_size)
        if layout.pieces:
            nanoseconds = self._coder(task).average(
                rows.view(-1),
                [rank * plan.nbytes + plan.frames_at for rank in range(self.world_size)],
                slots.sizes,
                layout.ends,
                slots.unused.tolist(),
                self._mean == "senders",
                task.scale,
            )
            layout.counters.decoded(layout.rows, nanoseconds)
        if layout.runs:
            start = time.perf_counter()
            total = rows.new_zeros(layout.dense_numel, dtype=sum_dtype(layout.dtype))
            for values in rows[:, plan.dense_at : plan.dense_end]:
                total += values.view(layout.dtype)
            mean = divide(total, self.world_size)
            if counts:
                unpack_dense(task, mean, start)
            else:
                task.bucket.unpack(layout.runs, mean)


class DeferredAllGather(AllGatherExchange):
    """Gathers the frames of all ranks, and changes nothing before the whole step is good.

    A memory in one buffer cannot go back. So the frames of a bucket are sent while its memories
    stay as they are, and the gradients stay in the bucket. The gathered frames are decoded once to
    other memory, which shows whether they can be, and whether the average overflows. When all
    buckets of a step are known to be good on all ranks, the memories are written, from the
    gradients and the frames of this rank, and then the averages take the place of the gradients.
    """

    postpones: ClassVar[bool] = True

    def _combine(self, flight: InFlightBucket, headers: NDArray[np.uint8]) -> None:
        slots, task = flight.contents, flight.task
        assert isinstance(slots, _Slots)
        self._frames.give(slots.slot, task.bucket.used(slots.slot))  # it was gathered, too
        try:
            self._read(flight, slots, headers)
            trial = replace(task, bucket=task.bucket.scratch())
            self._decode(trial, slots, counts=False)
            self._check(trial)
        except BaseException:
            self._give(task, slots)
            raise

    def _give(self, task: BucketTask, slots: _Slots) -> None:
        self._buffers.give(slots.gathered, task.bucket.used(slots.gathered))

    def _complete(self, flight: InFlightBucket) -> None:
        slots, task = flight.contents, flight.task
        assert isinstance(slots, _Slots)
        self._commit(task, slots)
        self._decode(replace(task, compared=None), slots)  # that was compared before
        self._checksums.note(flight)
        task.bucket.store()
        self._give(task, slots)

    def _commit(self, task: BucketTask, slots: _Slots) -> None:
        """Write the memories of this rank from its own frames."""
        layout, plan = task.layout, slots.plan
        sizes = slots.sizes[self.rank]
        first = self.rank * plan.nbytes + plan.frames_at
        starts = list(itertools.accumulate(sizes[:-1], initial=first))
        used = np.flatnonzero(~slots.unused).tolist()
        if used:
            task.bucket.commit(
                [layout.compressed[i].state for i in used],
                [end for i in used for end in layout.ends[2 * i : 2 * i + 2]],
                slots.gathered,
                [starts[i] for i in used],
                [sizes[i] for i in used],
                task.scale,
            )
