"""The base of the exchanges that sum values on the wire."""

import abc
import itertools
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from gradwire.torch.engine.layout import Layout
from gradwire.torch.engine.metrics import Outcomes
from gradwire.torch.engine.step import BucketTask, BufferPool, InFlightBucket
from gradwire.torch.errors import ExchangeError, GradientError
from gradwire.torch.exchange.base import ExchangeBase
from gradwire.torch.exchange.dense import (
    accumulator,
    mean_of,
    overflow,
    pack_dense,
    take,
    unpack_dense,
)
from gradwire.torch.exchange.flags import Head, Sums, check_word, read
from gradwire.torch.exchange.reasons import share_reasons
from gradwire.torch.exchange.vectors import Chosen, Vectors, wire_dtype
from gradwire.torch.transport import Channel

__all__ = ["ValueSumExchange"]


_BATCH = 1 << 18
"""Largest number of entries encoded in one call, unless a single parameter has more. It limits the
memory of their frames, which is needed in addition to the vectors."""


class ValueSumExchange(ExchangeBase):
    """Sums the values of entries that are the same on all ranks.

    A rank's vector consists of the head, the dense parameters, and the values of all pieces. If the
    dense parameters need another dtype than the values, the values are a second vector.

    Parameters
    ----------
    channel, carriers, check_result
        As in `ExchangeBase`.
    reasons : Channel
        Another channel with no other user, for the collectives of the receiving thread after a
        failure: in a shared channel, collectives of two threads would start in undefined order.
    """

    def __init__(
        self,
        channel: Channel,
        reasons: Channel,
        carriers: Mapping[str, str],
        *,
        check_result: bool,
    ) -> None:
        super().__init__(channel, carriers, check_result=check_result)
        self._reasons: Channel | None = reasons
        self._buffers = BufferPool()
        self._frames = BufferPool()
        self._recent: deque[torch.Tensor] = deque(maxlen=32)  # see all_gather.py

    def close(self) -> None:
        """Release both channels, without closing them, and the memory of frames and sums."""
        super().close()
        self._reasons = None
        self._buffers.clear()
        self._frames.clear()

    # What such an exchange is -----------------------------------------------------------------

    @abc.abstractmethod
    def _choose(self, job: BucketTask, sequence: int) -> Chosen:
        """Agree with the other ranks on positions. Must not raise an error of this rank alone."""

    # The sending thread -----------------------------------------------------------------------

    def send(self, job: BucketTask, sequence: int) -> InFlightBucket:
        """Encode a bucket and start the sum of its vectors."""
        start = time.perf_counter()
        chosen = self._choose(job, sequence)
        vectors, job = self._vectors(job, sequence, chosen)
        try:
            if chosen.error is not None:
                raise chosen.error
            self._fill(job, vectors)
        except BaseException as error:  # of any kind: the other ranks wait for these vectors
            vectors.error = error
            for each in vectors.whole:
                each.zero_()
            vectors.head = Head(job.layout, 0)  # the check word is ignored after a failure
            vectors.head.fail(bad=isinstance(error, GradientError))
        job.bucket.write_header(vectors.front, vectors.head.bytes_of(vectors.whole[0].dtype))
        self.times.add("encode", start)
        return self._start(job, sequence, vectors)

    def _vectors(
        self, job: BucketTask, sequence: int, chosen: Chosen
    ) -> tuple[Vectors, BucketTask]:
        layout = job.layout
        wire = wire_dtype(layout)
        # Zeros and ones are exact in any dtype; dense parameters keep their precision.
        own = accumulator(layout.dtype) if layout.runs else wire
        front, numel = Head.numel(layout) + layout.dense_numel, sum(chosen.counts)
        lengths = [(front + numel, own)] if own == wire else [(front, own), (numel, wire)]
        taken, job = take(
            job, [(self._buffers, length * dtype.itemsize) for length, dtype in lengths]
        )
        whole = [
            buffer[: length * dtype.itemsize].view(dtype)
            for buffer, (length, dtype) in zip(taken, lengths, strict=True)
        ]
        dense = whole[0][Head.numel(layout) : front]
        values = whole[-1][-numel:] if numel else whole[-1][:0]
        word = check_word(layout.digest, sequence, job.step.number, chosen.counts, chosen.by)
        whole = [each for each in whole if each.numel()]
        return Vectors(chosen, Head(layout, word), dense, values, whole, taken), job

    def _fill(self, job: BucketTask, vectors: Vectors) -> None:
        job.check()
        layout, chosen = job.layout, vectors.chosen
        ends = list(itertools.accumulate(chosen.counts, initial=0))
        zeros: list[bool] = []
        for members in _batches(layout, chosen):
            outcomes, values = chosen.made.get(members[0]) or self._values(job, chosen, members)
            vectors.values[ends[members[0]] : ends[members[-1] + 1]] = values
            zeros += outcomes.zero.tolist()
            nbytes = outcomes.count * vectors.values.element_size()
            nbytes += [chosen.nbytes[index] for index in members]
            layout.counters.encoded(layout.rows[members], outcomes, nbytes)
        for index, zero in enumerate(zeros):
            if not zero:
                vectors.head.use(index)
        if layout.runs:
            pack_dense(job, vectors.dense)

    def _values(
        self, job: BucketTask, chosen: Chosen, members: Sequence[int]
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
        numels = [parameter.numel for parameter in parameters]
        frames = self._frames.take(sum(limits), job.step.number, job.bucket)
        try:
            outcomes = self._encode(job, members, limits, frames, given)
            for parameter, count, sent in zip(
                parameters, counts, outcomes.count.tolist(), strict=True
            ):
                if sent != count:
                    raise RuntimeError(f"{sent} entries of {parameter.name!r} instead of {count}")
            sizes = outcomes.nbytes.tolist()
            whole = numels if numels == counts else ()
            values, positions = job.bucket.values_of(frames, sizes, whole, drawn)
        finally:
            self._frames.give(frames)  # to this thread, which works in its own order
        if drawn:
            parts = np.split(positions, np.cumsum(counts[:-1]))
            for index, parameter, part in zip(members, parameters, parts, strict=True):
                if part.size < parameter.numel:
                    chosen.positions[index] = part
        return outcomes, values

    def _start(self, job: BucketTask, sequence: int, vectors: Vectors) -> InFlightBucket:
        whole = vectors.whole
        self._recent.extend(each for each in whole if each.is_cpu)
        nbytes = sum(each.numel() * each.element_size() for each in whole)
        return InFlightBucket(
            job,
            sequence,
            works=tuple(self.channel.all_reduce(each) for each in whole),
            collectives=len(whole) + vectors.chosen.collectives,
            contents=vectors,
            room=nbytes + vectors.chosen.room,
            wire=(2 * nbytes + vectors.chosen.room) * (self.world_size - 1) / self.world_size,
        )

    # The receiving thread ---------------------------------------------------------------------

    def _look(self, flight: InFlightBucket) -> NDArray[np.uint8]:
        vectors = flight.contents
        assert isinstance(vectors, Vectors)
        nbytes = Head.numel(flight.job.layout) * vectors.whole[0].element_size()
        return flight.job.bucket.read_headers(vectors.front.view(1, -1), nbytes)

    def _combine(self, flight: InFlightBucket, fronts: NDArray[np.uint8]) -> None:
        vectors, job = flight.contents, flight.job
        assert isinstance(vectors, Vectors)
        try:
            self._take_over(job, vectors, read(fronts[0], vectors.whole[0].dtype), flight.sequence)
        finally:
            mark = job.bucket.used(*vectors.buffers)
            for buffer in vectors.buffers:
                self._buffers.give(buffer, mark)

    def _take_over(self, job: BucketTask, vectors: Vectors, sums: Sums, sequence: int) -> None:
        if sums.failed or sums.bad:
            assert self._reasons is not None
            share_reasons(self._reasons, job.layout, vectors.error)
        if not sums.in_step:
            raise ExchangeError(
                f"another rank summed other parameters than this rank at bucket {sequence}: the "
                "ranks did not run the same backward passes"
            )
        start = time.perf_counter()
        self._average(job, vectors, sums.used)
        counts = np.array(vectors.chosen.counts, np.int64)
        share = 1e9 * (time.perf_counter() - start) / max(1, counts.sum())
        job.layout.counters.decoded(job.layout.rows, (counts * share).astype(np.int64))
        start = time.perf_counter()
        if job.layout.runs:
            unpack_dense(job, mean_of(vectors.dense, self.world_size), start)
        if vectors.values.dtype == torch.float16 and not job.bucket.finite():
            raise overflow(job)  # the sum of finite values on the wire may exceed float16

    def _average(self, job: BucketTask, vectors: Vectors, used: Sequence[bool]) -> None:
        layout, bucket, chosen = job.layout, job.bucket, vectors.chosen
        ends = list(itertools.accumulate(chosen.counts, initial=0))
        pieces, values = layout.pieces, vectors.values
        places = {
            index: positions + np.int64(pieces[index].start)
            for index, positions in enumerate(chosen.positions)
            if positions is not None
        }
        # Pieces together: the overhead per piece would exceed the cost of its entries.
        if places:
            bucket.clear(0, layout.numel)  # dense parameters are written later
            total = _joined(values, ends, list(places))
            bucket.scatter(list(places.values()), self._mean(job, total))
        for members in _batches(layout, chosen):
            whole = [index for index in members if index not in places]
            if whole:
                runs = [(pieces[index].start, pieces[index].stop) for index in whole]
                bucket.unpack(runs, self._mean(job, _joined(values, ends, whole)))
        self._unused(job, [each for each, sent in zip(pieces, used, strict=True) if not sent])

    def _mean(self, job: BucketTask, total: torch.Tensor) -> torch.Tensor:
        """Return the mean of summed values, in float32 and times the loss scale."""
        mean = mean_of(total.float(), self.world_size)
        return mean if job.scale == 1.0 else mean.mul_(job.scale)


def _joined(values: torch.Tensor, ends: Sequence[int], members: Sequence[int]) -> torch.Tensor:
    """Return the values of some pieces, one after another; in place if they are so already."""
    first, last = members[0], members[-1]
    if last - first < len(members):
        return values[ends[first] : ends[last + 1]]
    return torch.cat([values[ends[index] : ends[index + 1]] for index in members])


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
