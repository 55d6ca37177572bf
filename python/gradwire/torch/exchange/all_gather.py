"""The exchange by all-gather: encode into a slot, gather all slots, decode in rank order.

A slot has the same length on every rank: a header, one record per frame, the dense parameters in
their own dtype, the frames one after another, and unused room. A rank that cannot fill its slot
writes the error instead, so the collective always completes and all ranks learn the reason.
"""

import operator
import time
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import override

from gradwire.torch.backends import SlotAverages, SlotFacts, SlotOrder, SlotPlaces
from gradwire.torch.engine.bucket_contents import BucketContents
from gradwire.torch.engine.metrics import Outcomes
from gradwire.torch.errors import ExchangeError
from gradwire.torch.exchange import wire
from gradwire.torch.exchange.base import Transfer
from gradwire.torch.exchange.dense import count_dense, divide, pack_dense, sum_dtype

if TYPE_CHECKING:
    from gradwire.torch.backends.cuda.slots import FilledSlot

_LIMIT = operator.attrgetter("limit.nbytes")
_RECORD = np.dtype([("size", "<u8"), ("wanted", "<u8"), ("zero", "<u8")])


class SlotLayout(SlotPlaces):
    """The layout of one bucket's slots."""

    __slots__ = ()

    @classmethod
    def of(cls, contents: BucketContents, itemsize: int) -> "SlotLayout":
        """Plan the slots of a bucket from the current limits."""
        limits = tuple(map(_LIMIT, contents.compressed))
        # All but the end of the dense parameters are multiples of 64. Two frames of at most 500
        # bytes alone: records at 64, frames at 128, and 1,152 bytes in all.
        records_at = wire.HEADER_NBYTES + 63 & ~63
        dense_at = records_at + len(limits) * _RECORD.itemsize + 63 & ~63
        dense_end = dense_at + contents.dense_numel * itemsize
        frames_at = dense_end + 63 & ~63
        nbytes = max(wire.MESSAGE_NBYTES, frames_at + sum(limits) + 63 & ~63)
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


class GatheredBucket(Transfer):
    """One bucket whose slots are gathered."""

    plan: SlotLayout
    rows: torch.Tensor  # the slots of all ranks, one row per rank
    slot: torch.Tensor  # this rank's, which is its row
    headers: NDArray[np.uint8]  # of all ranks
    filled: "FilledSlot | None" = None  # the slot, if the device fills it by itself
    averages: SlotAverages | None = None  # what the device has written then
    dense_seconds = 0.0

    # The sending thread -----------------------------------------------------------------------

    @override
    def send(self) -> None:
        start, exchange, task = time.perf_counter(), self.exchange, self.task
        plan = self.plan = SlotLayout.of(self.contents, self.bucket.itemsize)
        nbytes, total = plan.nbytes, plan.nbytes * exchange.world_size
        (memory,) = self.take(total)
        every = memory[:total]
        self.rows = every.view(-1, nbytes)
        self.slot = self.rows[exchange.rank]
        front, digest = np.zeros(plan.front, np.uint8), self.contents.digest
        try:
            if task.error is not None:
                raise task.error
            if self.bucket.fills(self.contents.compressed):
                self._fill_on_device()
            else:
                self._fill(front)
                checksum = exchange.checksums.last(self.contents)
                wire.write_verdict(front, digest, self.sequence, checksum=checksum)
                self.bucket.write_header(self.slot, front[: plan.dense_at])
        except BaseException as error:  # of any kind: the other ranks wait for this slot
            front[:] = 0
            message, failure = front[: wire.MESSAGE_NBYTES], wire.attributed(error, exchange.rank)
            wire.write_verdict(message, digest, self.sequence, failure)
            self.bucket.write_header(self.slot, front)
        exchange.times.add("encode", start)
        gather = exchange.channels[0].all_gather
        self.begin(gather, every, self.slot, room=nbytes, sent=total - nbytes)

    def _fill(self, front: NDArray[np.uint8]) -> None:
        """Write frames and dense parameters to the slot, and the records to its front."""
        contents, plan = self.contents, self.plan
        outcomes = self.encode(contents.pieces, plan.limits, self.slot[plan.frames_at :])
        records = plan.records(front)
        records["size"] = outcomes.nbytes
        records["wanted"] = outcomes.wanted()
        records["zero"] = outcomes.zero
        contents.counters.encoded(contents.rows, outcomes, outcomes.nbytes)
        if contents.runs:
            dense = self.slot[plan.dense_at : plan.dense_end].view(contents.dtype)
            pack_dense(self.task, dense)

    def _fill_on_device(self) -> None:
        """Let the device fill the slot by itself; the outcome is not known yet."""
        contents, rank = self.contents, self.exchange.rank
        if contents.facts is None:
            contents.facts = SlotFacts(
                contents.names,
                [(piece.stop - piece.start, piece.parameter.width) for piece in contents.dense],
                f"rank {rank} could not encode: kernels refuse the gradient of ",
                wire.TEXT_NBYTES,
                rank,
            )
        checksum, total = self.exchange.checksums.unread(contents)
        order = SlotOrder(
            [parameter.codec for parameter in contents.compressed],
            [parameter.state for parameter in contents.compressed],
            contents.ends,
            contents.runs,
            self.plan,
            wire.header_words(contents.digest, self.sequence, checksum),
            total,
            contents.facts,
            self.task.scale,
            self.task.unused,
        )
        filled = self.bucket.fill(self.slot, order)
        self.task.step.awaited[filled] = partial(self._await, filled)
        self.record(contents.pieces)
        self.filled = filled

    def _await(self, filled: "FilledSlot") -> Outcomes:
        """Return the outcomes of encodes on the device; drop the records of failed ones."""
        outcomes = Outcomes.of(filled.outcomes(), zero=self.task.unused)
        for parameter in self.contents.compressed[len(outcomes) :]:
            self.task.step.encoded.pop(parameter.name, None)
        return outcomes

    # The receiving thread ---------------------------------------------------------------------

    @override
    def read_headers(self) -> None:
        filled, exchange = self.filled, self.exchange
        if filled is None:
            self.headers = self.bucket.read_headers(self.rows, self.plan.front)
            return
        # All that can be done is started before the one wait, whatever the headers are to say.
        self._average_dense()
        senders, checks = self.part.means_senders, exchange.check_result
        self.averages = filled.average(self.rows, senders=senders, checks=checks)
        self.headers = self.averages.headers

    @override
    def combine(self) -> None:
        if self.filled is not None and self.averages is not None:
            self._take_outcome(self.filled, self.averages)
        self._decode()
        self.exchange.checksums.note(self)

    def _take_outcome(self, filled: "FilledSlot", averages: SlotAverages) -> None:
        """Record the encodes that the device made by itself, before the headers are read."""
        self.task.step.awaited.pop(filled, None)
        outcomes, times, contents = self._await(filled), self.exchange.times, self.contents
        if len(outcomes) == len(contents.pieces):
            contents.counters.encoded(contents.rows, outcomes, outcomes.nbytes)
        self.finite = averages.finite and averages.nanoseconds is not None
        times.seconds["encode"] += max(filled.seconds() - filled.launched, 0.0)
        times.move("exchange", "decode", averages.seconds)

    def _decode(self) -> None:
        """Raise the error of any rank, or write the averages; undo what no rank used."""
        task, contents, plan, averages = self.task, self.contents, self.plan, self.averages
        verdicts = wire.read_verdicts(self.headers, contents.digest, self.sequence)
        self.exchange.checksums.compare(contents, verdicts)
        records = plan.read_records(self.headers)
        # All limits come first: they must agree on all ranks whatever happens below.
        wanted = records["wanted"].max(axis=0).astype(np.int64)
        task.step.observe(contents.compressed, wanted.tolist())
        unused = records["zero"].astype(bool).min(axis=0)
        if unused.any():
            task.step.undo(map(contents.compressed.__getitem__, np.flatnonzero(unused)))
        spent = None if averages is None else averages.nanoseconds
        if spent is None and contents.pieces:
            spent = self.bucket.average(
                self.rows.view(-1),
                range(plan.frames_at, self.rows.numel(), plan.nbytes),
                records["size"].tolist(),
                contents.ends,
                unused.tolist(),
                self.part.means_senders,
                task.scale,
            )
        if spent is not None:
            contents.counters.decoded(contents.rows, spent)
        if contents.runs:
            if averages is None:
                self._average_dense()
            count_dense(task, self.dense_seconds)

    def _average_dense(self) -> None:
        plan, contents, start = self.plan, self.contents, time.perf_counter()
        if not contents.runs:
            return
        total = self.rows.new_zeros(contents.dense_numel, dtype=sum_dtype(contents.dtype))
        for values in self.rows[:, plan.dense_at : plan.dense_end]:
            total += values.view(contents.dtype)
        self.bucket.unpack(contents.runs, divide(total, self.exchange.world_size))
        self.dense_seconds = time.perf_counter() - start
