"""The base of the exchanges that sum values on the wire."""

import abc
import itertools
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from gradwire.torch.ddp.errors import ExchangeError, GradientError
from gradwire.torch.ddp.exchange.base import Exchange
from gradwire.torch.ddp.exchange.heads import Head, check_word
from gradwire.torch.ddp.exchange.pieces import (
    accumulator,
    overflow,
    pack_dense,
    unpack_dense,
)
from gradwire.torch.ddp.exchange.reasons import pack_reason, raise_first
from gradwire.torch.ddp.jobs import Buffers, Flight, Job
from gradwire.torch.ddp.layout import Layout
from gradwire.torch.ddp.report import Outcomes

__all__ = ["Chosen", "Summed", "wire_dtype"]


_BATCH = 1 << 18
"""Largest number of entries encoded in one call, unless a single parameter has more. It limits the
memory of their frames, which is needed in addition to the vectors."""


def wire_dtype(layout: Layout) -> torch.dtype:
    """Return the dtype in which the values of a bucket are summed."""
    summed_as = layout.compressed[0].codec.quantize.summed_as if layout.compressed else "float32"
    dtype: torch.dtype = getattr(torch, summed_as)
    return dtype


@dataclass(slots=True, eq=False)
class Chosen:
    """The entries of one bucket that all ranks send.

    Attributes
    ----------
    counts : list of int
        Number of entries of each piece; the same on every rank, even after a failure.
    positions : list
        Their positions, as uint32; None for all entries of a piece, or until it is encoded.
    error : BaseException or None
        Why this rank has no values for some of them.
    made : dict
        Pieces already encoded, by index: outcome and values.
    nbytes : list of int
        Bytes on the wire for the positions of each piece.
    by : object
        What all ranks must agree on to select the same positions.
    collectives, room : int
        Collectives made for the positions, and bytes passed to them.
    """

    counts: list[int]
    positions: list[NDArray[np.uint32] | None]
    error: BaseException | None
    made: dict[int, tuple[Outcomes, torch.Tensor]]
    nbytes: list[int]
    by: object = None
    collectives: int = 0
    room: int = 0


@dataclass(slots=True, eq=False)
class _Vectors:
    chosen: Chosen
    head: Head
    values: torch.Tensor
    whole: list[torch.Tensor]
    buffers: list[torch.Tensor]
    error: BaseException | None = None


class Summed(Exchange):
    """Sums the values of entries that are the same on all ranks.

    A rank's vector consists of the head, the dense parameters, and the values of all pieces. If the
    dense parameters need another dtype than the values, the values are a second vector.

    Parameters
    ----------
    group, check_result
        As in `Exchange`.
    reasons : torch.distributed.ProcessGroup
        Another group with no other user, for the collectives of the receiving thread after a
        failure: in a shared group, collectives of two threads would start in undefined order.
    """

    def __init__(
        self, group: dist.ProcessGroup, reasons: dist.ProcessGroup, *, check_result: bool
    ) -> None:
        super().__init__(group, check_result=check_result)
        self._reasons: dist.ProcessGroup | None = reasons
        self._buffers = Buffers()
        self._frames = Buffers()
        self._recent: deque[torch.Tensor] = deque(maxlen=32)  # see all_gather.py

    def close(self) -> None:
        """Release both groups, without destroying them."""
        super().close()
        self._reasons = None

    # What such an exchange is -----------------------------------------------------------------

    @abc.abstractmethod
    def _choose(self, job: Job, sequence: int) -> Chosen:
        """Agree with the other ranks on positions. Must not raise an error of this rank alone."""

    # The sending thread -----------------------------------------------------------------------

    def send(self, job: Job, sequence: int) -> Flight:
        """Encode a bucket and start the sum of its vectors."""
        start = time.perf_counter()
        chosen = self._choose(job, sequence)
        vectors = self._vectors(job, sequence, chosen)
        try:
            if chosen.error is not None:
                raise chosen.error
            self._fill(job, vectors)
        except BaseException as error:  # of any kind: the other ranks wait for these vectors
            vectors.error = error
            vectors.values.zero_()
            vectors.head.clear(0)  # the check word is ignored after a failure
            vectors.head.fail(bad=isinstance(error, GradientError))
        self.times.add("encode", start)
        return self._start(job, sequence, vectors)

    def _vectors(self, job: Job, sequence: int, chosen: Chosen) -> _Vectors:
        layout = job.layout
        wire = wire_dtype(layout)
        # Zeros and ones are exact in any dtype; dense parameters keep their precision.
        own = accumulator(layout.dtype) if layout.runs else wire
        front, numel = Head.numel(layout), sum(chosen.counts)
        lengths = [(front + numel, own)] if own == wire else [(front, own), (numel, wire)]
        taken = [
            self._buffers.take(length * dtype.itemsize, job.step.number)
            for length, dtype in lengths
        ]
        whole = [
            buffer[: length * dtype.itemsize].view(dtype)
            for buffer, (length, dtype) in zip(taken, lengths, strict=True)
        ]
        values = whole[-1][-numel:] if numel else whole[-1][:0]
        head = Head(whole[0], layout)
        head.clear(check_word(layout.digest, sequence, job.step.number, chosen.counts, chosen.by))
        return _Vectors(chosen, head, values, [each for each in whole if each.numel()], taken)

    def _fill(self, job: Job, vectors: _Vectors) -> None:
        layout, chosen = job.layout, vectors.chosen
        ends = list(itertools.accumulate(chosen.counts, initial=0))
        for members in _batches(layout, chosen):
            outcomes, values = chosen.made.get(members[0]) or self._values(job, chosen, members)
            vectors.values[ends[members[0]] : ends[members[-1] + 1]] = values
            for index, zero in zip(members, outcomes.zero.tolist(), strict=True):
                if not zero:
                    vectors.head.use(index)
            nbytes = outcomes.count * vectors.values.element_size()
            nbytes += [chosen.nbytes[index] for index in members]
            layout.tallies.encoded(layout.rows[members], outcomes, nbytes)
        if layout.runs:
            pack_dense(job, vectors.head.dense)

    def _values(
        self, job: Job, chosen: Chosen, members: Sequence[int]
    ) -> tuple[Outcomes, torch.Tensor]:
        """Encode adjacent pieces of a bucket, and read the values from their frames."""
        parameters = [job.layout.compressed[index] for index in members]
        counts = [chosen.counts[index] for index in members]
        limits = [
            parameter.codec._codec.max_encoded_len(parameter.numel, count)
            for parameter, count in zip(parameters, counts, strict=True)
        ]
        given = [chosen.positions[index] for index in members]
        drawn = any(
            positions is None and count < parameter.numel
            for positions, count, parameter in zip(given, counts, parameters, strict=True)
        )
        frames = self._frames.take(sum(limits), job.step.number, job.bucket.frames_on)
        try:
            outcomes = self._encode(job, members, limits, frames, given)
            for parameter, count, sent in zip(
                parameters, counts, outcomes.count.tolist(), strict=True
            ):
                if sent != count:
                    raise RuntimeError(f"{sent} entries of {parameter.name!r} instead of {count}")
            values, positions = job.bucket.values_of(frames, outcomes.nbytes.tolist(), drawn)
        finally:
            self._frames.give(frames)
        if drawn:
            parts = np.split(positions, np.cumsum(counts[:-1]))
            for index, parameter, part in zip(members, parameters, parts, strict=True):
                if part.size < parameter.numel:
                    chosen.positions[index] = part
        return outcomes, values

    def _start(self, job: Job, sequence: int, vectors: _Vectors) -> Flight:
        whole = vectors.whole
        self._recent.extend(whole)
        nbytes = sum(each.numel() * each.element_size() for each in whole)
        return Flight(
            job,
            sequence,
            works=tuple(self._sum(each) for each in whole),
            collectives=len(whole) + vectors.chosen.collectives,
            contents=vectors,
            room=nbytes + vectors.chosen.room,
            wire=(2 * nbytes + vectors.chosen.room) * (self.world_size - 1) / self.world_size,
        )

    def _sum(self, vector: torch.Tensor) -> "dist.Work":
        work = dist.all_reduce(vector, group=self.group, async_op=True)
        assert work is not None  # with async_op
        return work

    # The receiving thread ---------------------------------------------------------------------

    def _combine(self, flight: Flight) -> None:
        vectors = flight.contents
        assert isinstance(vectors, _Vectors)
        try:
            self._take_over(flight.job, vectors, flight.sequence)
        finally:
            for buffer in vectors.buffers:
                self._buffers.give(buffer)

    def _take_over(self, job: Job, vectors: _Vectors, sequence: int) -> None:
        sums = vectors.head.read()
        if sums.failed or sums.bad:
            self._raise_failure(job.layout, vectors.error)
        if not sums.in_step:
            raise ExchangeError(
                f"another rank summed other parameters than this rank at bucket {sequence}: the "
                "ranks did not run the same backward passes"
            )
        start = time.perf_counter()
        self._average(job, vectors, sums.used)
        counts = np.array(vectors.chosen.counts, np.int64)
        share = 1e9 * (time.perf_counter() - start) / max(1, counts.sum())
        job.layout.tallies.decoded(job.layout.rows, (counts * share).astype(np.int64))
        start = time.perf_counter()
        if job.layout.runs:
            unpack_dense(job, vectors.head.dense.div_(self.world_size), start)
        if vectors.values.dtype == torch.float16 and not job.bucket.finite():
            raise overflow(job)  # the sum of finite values on the wire may exceed float16

    def _average(self, job: Job, vectors: _Vectors, used: Sequence[bool]) -> None:
        layout, bucket, chosen = job.layout, job.bucket, vectors.chosen
        ends = list(itertools.accumulate(chosen.counts, initial=0))
        sums: list[torch.Tensor] = []
        places: list[NDArray[np.int64]] = []
        if any(positions is not None for positions in chosen.positions):
            bucket.clear(0, layout.numel)  # dense parameters are written later
        for index, piece in enumerate(layout.pieces):
            positions, total = (
                chosen.positions[index],
                vectors.values[ends[index] : ends[index + 1]],
            )
            if not used[index]:
                self._unused(job, piece)
            elif positions is None:
                bucket.unpack([(piece.start, piece.stop)], self._mean(job, total))
            else:
                sums.append(total)
                places.append(positions + np.int64(piece.start))
        if sums:
            # All pieces together: the overhead per piece would exceed the cost of its entries.
            bucket.scatter(places, self._mean(job, torch.cat(sums)))

    def _mean(self, job: Job, total: torch.Tensor) -> torch.Tensor:
        """Return the mean of summed values, in float32 and times the loss scale."""
        mean = total.float().div_(self.world_size)
        return mean if job.scale == 1.0 else mean.mul_(job.scale)

    def _raise_failure(self, layout: Layout, error: BaseException | None) -> None:
        """Send this rank's reason to the other ranks, and raise that of the first failing rank.

        Every rank calls this for the same buckets in the same order, and no other collective uses
        the group.
        """
        mine = pack_reason(layout, error)
        every = mine.new_empty(self.world_size * mine.numel())
        try:
            dist.all_gather_into_tensor(every, mine, group=self._reasons)
        except RuntimeError as failure:
            raise ExchangeError(f"a rank failed without reporting why ({failure})") from failure
        raise_first(layout, every.view(self.world_size, -1))


def _batches(layout: Layout, chosen: Chosen) -> Iterator[list[int]]:
    """Divide the pieces of a bucket, in order: encoded ones alone, others with their neighbours."""
    batch: list[int] = []
    numel = 0
    for index, parameter in enumerate(layout.compressed):
        alone = index in chosen.made
        if batch and (alone or numel + parameter.numel > _BATCH):
            yield batch
            batch, numel = [], 0
        if alone:
            yield [index]
        else:
            batch.append(index)
            numel += parameter.numel
    if batch:
        yield batch
