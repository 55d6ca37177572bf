"""The exchange by all-gather: encode into a slot, gather all slots, decode in rank order.

A slot has the same length on every rank: a header, one record per frame, the dense parameters in
their own dtype, the frames one after another, and unused room. A rank that cannot fill its slot
writes the error instead, so the collective always completes and all ranks learn the reason.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Literal
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray

from gradwire.torch.backends import FilledSlot, SlotAverages, SlotFacts, SlotOrder, SlotPlaces
from gradwire.torch.engine.bucket_contents import BucketContents
from gradwire.torch.engine.metrics import Outcomes
from gradwire.torch.engine.step import BucketTask, InFlightBucket
from gradwire.torch.errors import ExchangeError
from gradwire.torch.exchange import wire
from gradwire.torch.exchange.base import ExchangeBase
from gradwire.torch.exchange.dense import count_dense, divide, pack_dense, sum_dtype, take_buffers
from gradwire.torch.transport import Channel

_RECORD = np.dtype([("size", "<u8"), ("wanted", "<u8"), ("zero", "<u8")])
_ALIGN = 64


def _align(nbytes: int) -> int:
    return -(-nbytes // _ALIGN) * _ALIGN


class SlotLayout(SlotPlaces):
    """The layout of one bucket's slots."""

    __slots__ = ()

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
        end = self.records_at + len(self.limits) * _RECORD.itemsize
        records = np.ascontiguousarray(fronts[:, self.records_at : end]).view(_RECORD)
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
    filled: FilledSlot | None = None  # by the device, if it was
    averages: SlotAverages | None = None
    dense_seconds: float = 0.0  # that averaging the dense parameters took
    # Bytes of each rank's frames.
    sizes: NDArray[np.uint64] = field(default_factory=lambda: np.empty(0, np.uint64))
    # Pieces whose gradients are zero on every rank.
    unused: NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, np.bool_))

    def rows(self, ranks: int) -> torch.Tensor:
        """Return the slots of all ranks, one row per rank."""
        return self.gathered[: self.plan.nbytes * ranks].view(ranks, self.plan.nbytes)


def _facts_of(layout: BucketContents, rank: int) -> SlotFacts:
    return SlotFacts(
        layout.names,
        [(piece.stop - piece.start, piece.parameter.width) for piece in layout.dense],
        f"rank {rank} could not encode: kernels refuse the gradient of ",
        wire.TEXT_NBYTES,
        rank,
    )


class AllGatherExchange(ExchangeBase):
    """Gathers the frames of all ranks: one collective per bucket.

    It averages over all ranks or over senders: see `gradwire.exchange.AllGather`.
    """

    def __init__(
        self,
        channel: Channel,
        device_backends: Mapping[str, str],
        *,
        check_result: bool,
        mean: Literal["ranks", "senders"],
    ) -> None:
        super().__init__(channel, device_backends, check_result=check_result)
        self._mean = mean
        self._facts: WeakKeyDictionary[BucketContents, SlotFacts] = WeakKeyDictionary()

    # The sending thread -----------------------------------------------------------------------

    def send(self, task: BucketTask, sequence: int) -> InFlightBucket:
        """Encode a bucket and start the all-gather of its slot."""
        start = time.perf_counter()
        plan = SlotLayout.of(task.layout, task.bucket.itemsize)
        (slot,), task = take_buffers(task, [(self._frames, plan.nbytes)])
        filled = self._fill(task, plan, slot, sequence)
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
            contents=_Slots(plan, slot, gathered, filled),
            room=plan.nbytes,
            wire=plan.nbytes * (self.world_size - 1),
        )

    def _fill(
        self, task: BucketTask, plan: SlotLayout, slot: torch.Tensor, sequence: int
    ) -> FilledSlot | None:
        """Write a slot, or let the device do it by itself if it can."""
        layout = task.layout
        front = np.zeros(plan.front, np.uint8)
        try:
            filled = self._start(task, plan, slot, sequence)
            if filled is not None:
                return filled
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
        return None

    def _start(
        self, task: BucketTask, plan: SlotLayout, slot: torch.Tensor, sequence: int
    ) -> FilledSlot | None:
        """Let the device fill the slot by itself, if it can; the outcome is not known yet."""
        task.check()
        layout = task.layout
        facts = self._facts.get(layout)
        if facts is None:
            facts = self._facts[layout] = _facts_of(layout, self.rank)
        checksum, total = self._checksums.unread(layout)
        order = SlotOrder(
            [parameter.codec for parameter in layout.compressed],
            [parameter.state for parameter in layout.compressed],
            *(layout.ends, layout.runs, plan),
            wire.header_words(layout.digest, sequence, checksum),
            total,
            facts,
            task.scale,
            task.unused,
        )
        filled = task.bucket.fill(slot, order)
        if filled is not None:
            task.step.awaited[filled] = partial(self._settle, task, filled)
            task.step.encoded.update((each.name, each) for each in layout.compressed)
            for piece in layout.pieces:
                if piece.parameter.measured is not None:
                    self._record(task, piece)
        return filled

    def _settle(self, task: BucketTask, filled: FilledSlot) -> Outcomes:
        """Return the outcomes of encodes on the device; drop the records of failed ones."""
        outcomes = self._outcomes(task, filled.settle())
        for parameter in task.layout.compressed[len(outcomes) :]:
            task.step.encoded.pop(parameter.name, None)
        return outcomes

    # The receiving thread ---------------------------------------------------------------------

    def _read_headers(self, flight: InFlightBucket) -> NDArray[np.uint8]:
        slots = flight.contents
        assert isinstance(slots, _Slots)
        rows = slots.rows(self.world_size)
        if slots.filled is None:
            return flight.task.bucket.read_headers(rows, slots.plan.front)
        task = flight.task
        # All that can be done is started before the one wait, whatever the headers are to say.
        if task.layout.runs:
            slots.dense_seconds = self._average_dense(task, slots)
        slots.averages = slots.filled.average(
            rows, senders=self._mean == "senders", checks=self._check_result
        )
        return slots.averages.headers

    def _combine(self, flight: InFlightBucket, headers: NDArray[np.uint8]) -> None:
        slots, task = flight.contents, flight.task
        assert isinstance(slots, _Slots)
        try:
            self._take(flight, slots)
            self._read(flight, slots, headers)
            self._decode(task, slots)
            self._checksums.note(flight)
        finally:
            mark = task.bucket.used(slots.slot, slots.gathered)
            self._frames.give(slots.slot, mark)
            self._buffers.give(slots.gathered, mark)

    def _take(self, flight: InFlightBucket, slots: _Slots) -> None:
        """Record the encodes that the device made by itself, before the headers are read."""
        filled, averages, task = slots.filled, slots.averages, flight.task
        if filled is None or averages is None:
            return
        task.step.awaited.pop(filled, None)
        outcomes = self._settle(task, filled)
        if len(outcomes) == len(task.layout.pieces):
            task.layout.counters.encoded(task.layout.rows, outcomes, outcomes.nbytes)
        flight.finite = averages.finite and averages.nanoseconds is not None
        self.times.seconds["encode"] += max(filled.seconds() - filled.launched, 0.0)
        self.times.move("exchange", "decode", averages.seconds)
        if flight.marks is not None:
            flight.marks.arrived -= averages.seconds
            flight.marks.decoding = flight.marks.arrived

    def _read(self, flight: InFlightBucket, slots: _Slots, headers: NDArray[np.uint8]) -> None:
        """Raise the error of any rank; undo the encodes of parameters that no rank used."""
        task, layout = flight.task, flight.task.layout
        verdicts = wire.read_verdicts(headers, layout.digest, flight.sequence)
        wire.raise_first(verdicts)
        self._checksums.compare(layout, verdicts)
        records = slots.plan.read_records(headers)
        slots.sizes = records["size"]
        slots.unused = records["zero"].astype(bool).min(axis=0)
        # All limits come first: they must agree on all ranks whatever happens below.
        wanted = records["wanted"].max(axis=0).astype(np.int64)
        for parameter, nbytes in zip(layout.compressed, wanted.tolist(), strict=True):
            task.step.observe(parameter, nbytes)
        task.step.undo([layout.compressed[index] for index in np.flatnonzero(slots.unused)])

    def _decode(self, task: BucketTask, slots: _Slots) -> None:
        """Write the averages of all parameters."""
        plan, layout = slots.plan, task.layout
        rows = slots.rows(self.world_size)
        if slots.averages is not None and slots.averages.nanoseconds is not None:
            layout.counters.decoded(layout.rows, slots.averages.nanoseconds)
        elif layout.pieces:
            nanoseconds = task.bucket.average(
                rows.view(-1),
                [rank * plan.nbytes + plan.frames_at for rank in range(self.world_size)],
                slots.sizes.tolist(),
                layout.ends,
                slots.unused.tolist(),
                self._mean == "senders",
                task.scale,
            )
            layout.counters.decoded(layout.rows, nanoseconds)
        if layout.runs and slots.averages is None:
            slots.dense_seconds = self._average_dense(task, slots)
        if layout.runs:
            count_dense(task, slots.dense_seconds)

    def _average_dense(self, task: BucketTask, slots: _Slots) -> float:
        """Write the averages of uncompressed parameters; return the seconds that it took."""
        plan, layout, start = slots.plan, task.layout, time.perf_counter()
        rows = slots.rows(self.world_size)
        total = rows.new_zeros(layout.dense_numel, dtype=sum_dtype(layout.dtype))
        for values in rows[:, plan.dense_at : plan.dense_end]:
            total += values.view(layout.dtype)
        mean = divide(total, self.world_size)
        task.bucket.unpack(layout.runs, mean)
        return time.perf_counter() - start
