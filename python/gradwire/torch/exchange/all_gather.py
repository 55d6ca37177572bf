"""The exchange by all-gather: encode into a slot, gather all slots, decode in rank order.

A slot has the same length on every rank: a header, one record per frame, the dense parameters in
their own dtype, the frames one after another, and unused room. A rank that cannot fill its slot
writes the error instead, so the collective always completes and all ranks learn the reason.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray

from gradwire.torch.backends import SlotAverages, SlotFacts, SlotOrder, SlotPlaces
from gradwire.torch.engine.bucket_contents import BucketContents
from gradwire.torch.engine.metrics import Outcomes
from gradwire.torch.engine.step import BucketTask, InFlightBucket
from gradwire.torch.errors import ExchangeError
from gradwire.torch.exchange import wire
from gradwire.torch.exchange.base import ExchangeBase
from gradwire.torch.exchange.dense import count_dense, divide, pack_dense, sum_dtype, take_buffers
from gradwire.torch.transport import Channel

if TYPE_CHECKING:
    from gradwire.torch.backends.cuda.slots import FilledSlot

_RECORD = np.dtype([("size", "<u8"), ("wanted", "<u8"), ("zero", "<u8")])


class SlotLayout(SlotPlaces):
    """The layout of one bucket's slots."""

    __slots__ = ()

    @classmethod
    def of(cls, contents: BucketContents, itemsize: int) -> "SlotLayout":
        """Plan the slots of a bucket from the current limits."""
        limits, room = [], 0
        for parameter in contents.compressed:
            limits.append(parameter.limit.nbytes)
            room += limits[-1]
        # All but the end of the dense parameters are multiples of 64.
        records_at = wire.HEADER_NBYTES + 63 & ~63
        dense_at = records_at + len(limits) * _RECORD.itemsize + 63 & ~63
        dense_end = dense_at + contents.dense_numel * itemsize
        frames_at = dense_end + 63 & ~63
        nbytes = max(wire.MESSAGE_NBYTES, frames_at + room + 63 & ~63)
        front = max(wire.MESSAGE_NBYTES, dense_at)
        return cls(tuple(limits), records_at, dense_at, dense_end, frames_at, nbytes, front)

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
    rows: torch.Tensor  # these, one row per rank
    filled: "FilledSlot | None"  # by the device, if it was
    averages: SlotAverages | None = None
    dense_seconds: float = 0.0  # that averaging the dense parameters took


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
        self._senders = mean == "senders"
        self._facts: WeakKeyDictionary[BucketContents, SlotFacts] = WeakKeyDictionary()

    # The sending thread -----------------------------------------------------------------------

    def send(self, task: BucketTask, sequence: int) -> InFlightBucket:
        """Encode a bucket and start the all-gather of its slot."""
        start = time.perf_counter()
        plan = SlotLayout.of(task.contents, task.bucket.itemsize)
        nbytes, total = plan.nbytes, plan.nbytes * self.world_size
        pools = [(self._frames, nbytes), (self._buffers, total)]
        (slot, gathered), task = take_buffers(task, pools)
        filled = self._fill(task, plan, slot, sequence)
        self.times.add("encode", start)
        every, mine = gathered[:total], slot[:nbytes]
        self._keep(every, mine)
        return InFlightBucket(
            task,
            sequence,
            works=(self.channel.all_gather(every, mine),),
            payload=_Slots(plan, slot, gathered, every.view(-1, nbytes), filled),
            room=nbytes,
            wire=total - nbytes,
        )

    def _fill(
        self, task: BucketTask, plan: SlotLayout, slot: torch.Tensor, sequence: int
    ) -> "FilledSlot | None":
        """Write a slot; return it if the device does that by itself."""
        front = np.zeros(plan.front, np.uint8)
        try:
            task.check()
            if task.bucket.fills(task.contents.compressed):
                return self._fill_on_device(task, plan, slot, sequence)
            self._fill_here(task, plan, slot, front)
            checksum = self._checksums.last(task.contents)
            wire.write_verdict(front, task.contents.digest, sequence, checksum=checksum)
            front = front[: plan.dense_at]
        except BaseException as error:  # of any kind: the other ranks wait for this slot
            front[:] = 0
            message, failure = front[: wire.MESSAGE_NBYTES], wire.attributed(error, self.rank)
            wire.write_verdict(message, task.contents.digest, sequence, failure)
        task.bucket.write_header(slot, front)
        return None

    def _fill_here(
        self, task: BucketTask, plan: SlotLayout, slot: torch.Tensor, front: NDArray[np.uint8]
    ) -> None:
        """Write frames and dense parameters to a slot, and the records to its front."""
        contents = task.contents
        outcomes = self._encode(task, contents.pieces, plan.limits, slot[plan.frames_at :])
        records = plan.records(front)
        records["size"] = outcomes.nbytes
        records["wanted"] = outcomes.wanted()
        records["zero"] = outcomes.zero
        contents.counters.encoded(contents.rows, outcomes, outcomes.nbytes)
        if contents.runs:
            pack_dense(task, slot[plan.dense_at : plan.dense_end].view(contents.dtype))

    def _fill_on_device(
        self, task: BucketTask, plan: SlotLayout, slot: torch.Tensor, sequence: int
    ) -> "FilledSlot":
        """Let the device fill the slot by itself; the outcome is not known yet."""
        contents = task.contents
        facts = self._facts.get(contents)
        if facts is None:
            facts = self._facts[contents] = SlotFacts(
                contents.names,
                [(piece.stop - piece.start, piece.parameter.width) for piece in contents.dense],
                f"rank {self.rank} could not encode: kernels refuse the gradient of ",
                wire.TEXT_NBYTES,
                self.rank,
            )
        checksum, total = self._checksums.unread(contents)
        order = SlotOrder(
            [parameter.codec for parameter in contents.compressed],
            [parameter.state for parameter in contents.compressed],
            contents.ends,
            contents.runs,
            plan,
            wire.header_words(contents.digest, sequence, checksum),
            total,
            facts,
            task.scale,
            task.unused,
        )
        filled: FilledSlot = task.bucket.fill(slot, order)
        task.step.awaited[filled] = partial(self._await, task, filled)
        self._record(task, contents.pieces)
        return filled

    def _await(self, task: BucketTask, filled: "FilledSlot") -> Outcomes:
        """Return the outcomes of encodes on the device; drop the records of failed ones."""
        outcomes = self._outcomes(task, filled.outcomes())
        for parameter in task.contents.compressed[len(outcomes) :]:
            task.step.encoded.pop(parameter.name, None)
        return outcomes

    # The receiving thread ---------------------------------------------------------------------

    def _read_headers(self, flight: InFlightBucket) -> NDArray[np.uint8]:
        slots, task = flight.payload, flight.task
        assert isinstance(slots, _Slots)
        if slots.filled is None:
            return task.bucket.read_headers(slots.rows, slots.plan.front)
        # All that can be done is started before the one wait, whatever the headers are to say.
        self._average_dense(task, slots)
        slots.averages = slots.filled.average(
            slots.rows, senders=self._senders, checks=self._check_result
        )
        return slots.averages.headers

    def _combine(self, flight: InFlightBucket, headers: NDArray[np.uint8]) -> None:
        slots, task = flight.payload, flight.task
        assert isinstance(slots, _Slots)
        try:
            if slots.filled is not None and slots.averages is not None:
                self._take_outcome(flight, slots.filled, slots.averages)
            self._decode(flight, slots, headers)
            self._checksums.note(flight)
        finally:
            mark = task.bucket.used(slots.slot, slots.gathered)
            self._frames.give(slots.slot, mark)
            self._buffers.give(slots.gathered, mark)

    def _take_outcome(
        self, flight: InFlightBucket, filled: "FilledSlot", averages: SlotAverages
    ) -> None:
        """Record the encodes that the device made by itself, before the headers are read."""
        task = flight.task
        task.step.awaited.pop(filled, None)
        outcomes = self._await(task, filled)
        if len(outcomes) == len(task.contents.pieces):
            task.contents.counters.encoded(task.contents.rows, outcomes, outcomes.nbytes)
        flight.finite = averages.finite and averages.nanoseconds is not None
        self.times.seconds["encode"] += max(filled.seconds() - filled.launched, 0.0)
        self.times.move("exchange", "decode", averages.seconds)

    def _decode(self, flight: InFlightBucket, slots: _Slots, headers: NDArray[np.uint8]) -> None:
        """Raise the error of any rank, or write the averages; undo what no rank used."""
        task, contents, plan = flight.task, flight.task.contents, slots.plan
        verdicts = wire.read_verdicts(headers, contents.digest, flight.sequence)
        wire.raise_first(verdicts)
        self._checksums.compare(contents, verdicts)
        records = plan.read_records(headers)
        # All limits come first: they must agree on all ranks whatever happens below.
        wanted = records["wanted"].max(axis=0).astype(np.int64)
        task.step.observe(contents.compressed, wanted.tolist())
        unused = records["zero"].astype(bool).min(axis=0)
        task.step.undo(map(contents.compressed.__getitem__, np.flatnonzero(unused)))
        spent = None if slots.averages is None else slots.averages.nanoseconds
        if spent is None and contents.pieces:
            spent = task.bucket.average(
                slots.rows.view(-1),
                range(plan.frames_at, slots.rows.numel(), plan.nbytes),
                records["size"].tolist(),
                contents.ends,
                unused.tolist(),
                self._senders,
                task.scale,
            )
        if spent is not None:
            contents.counters.decoded(contents.rows, spent)
        if slots.averages is None:
            self._average_dense(task, slots)
        if contents.runs:
            count_dense(task, slots.dense_seconds)

    def _average_dense(self, task: BucketTask, slots: _Slots) -> None:
        """Write the averages of uncompressed parameters."""
        plan, contents, start = slots.plan, task.contents, time.perf_counter()
        if not contents.runs:
            return
        total = slots.rows.new_zeros(contents.dense_numel, dtype=sum_dtype(contents.dtype))
        for values in slots.rows[:, plan.dense_at : plan.dense_end]:
            total += values.view(contents.dtype)
        task.bucket.unpack(contents.runs, divide(total, self.world_size))
        slots.dense_seconds = time.perf_counter() - start
