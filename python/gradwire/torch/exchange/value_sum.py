"""Exchanges that sum values: of all entries, of random ones, or of those that a leader selects."""

import abc
import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from gradwire.torch.engine.bucket_contents import BucketContents
from gradwire.torch.engine.metrics import Outcomes
from gradwire.torch.engine.step import BucketTask, InFlightBucket
from gradwire.torch.exchange.base import ExchangeBase
from gradwire.torch.exchange.dense import (
    divide,
    overflow_error,
    pack_dense,
    sum_dtype,
    take_buffers,
    unpack_dense,
)
from gradwire.torch.exchange.wire import Flags, check_word, read_flags, share_failure

_BATCH = 1 << 18
"""Largest number of entries encoded in one call, unless a single parameter has more. It limits the
memory of their frames, which is needed in addition to the vectors."""


@dataclass(slots=True, eq=False)
class SharedSelection:
    """The entries of one bucket that all ranks send, at shared positions."""

    counts: list[int]  # entries of each piece: the same on every rank, even after a failure
    positions: list[NDArray[np.uint32] | None]  # None for all entries, or until it is encoded
    encoded: dict[int, tuple[Outcomes, torch.Tensor]]  # values of pieces that are encoded already
    nbytes: list[int]  # on the wire for the positions of each piece
    facts: object = None  # what all ranks must agree on to select the same positions
    error: BaseException | None = None  # why this rank has no values for some of them
    collectives: int = 0  # made for the positions
    room: int = 0  # bytes passed to these


@dataclass(slots=True, eq=False)
class _Vectors:
    """The vectors of one bucket that this rank sums."""

    selection: SharedSelection
    flags: Flags  # at the start of the first vector; written last
    dense: torch.Tensor  # where dense parameters are in the vectors
    values: torch.Tensor  # where the values of all pieces are
    vectors: list[torch.Tensor]  # one or two
    buffers: list[torch.Tensor]  # the bytes that these are parts of
    error: BaseException | None = None  # why this rank sums nothing but the flags


class ValueSumExchange(ExchangeBase):
    """Sums the values of entries that are the same on all ranks.

    A rank's vector consists of flags, the dense parameters, and the values of all pieces. If the
    dense parameters need another dtype than the values, the values are a second vector.
    """

    # What such an exchange is -----------------------------------------------------------------

    @abc.abstractmethod
    def _select_shared(self, task: BucketTask, sequence: int) -> SharedSelection:
        """Agree with the other ranks on positions. An error of one rank must not be raised here."""

    # The sending thread -----------------------------------------------------------------------

    def send(self, task: BucketTask, sequence: int) -> InFlightBucket:
        """Encode a bucket and start the sum of its vectors."""
        start = time.perf_counter()
        selection = self._select_shared(task, sequence)
        sums, task = self._take_vectors(task, sequence, selection)
        try:
            if selection.error is not None:
                raise selection.error
            self._fill(task, sums)
        except BaseException as error:  # of any kind: the other ranks wait for these vectors
            sums.error = error
            for vector in sums.vectors:
                vector.zero_()
            sums.flags.fail()
        first = sums.vectors[0]
        task.bucket.write_header(first.view(torch.uint8), sums.flags.bytes_of(first.dtype))
        self.times.add("encode", start)
        self._keep(*sums.vectors)
        nbytes = sum(vector.nbytes for vector in sums.vectors)
        return InFlightBucket(
            task,
            sequence,
            works=tuple(self.channel.all_reduce(vector) for vector in sums.vectors),
            collectives=len(sums.vectors) + selection.collectives,
            payload=sums,
            room=nbytes + selection.room,
            wire=(2 * nbytes + selection.room) * (self.world_size - 1) / self.world_size,
        )

    def _take_vectors(
        self, task: BucketTask, sequence: int, selection: SharedSelection
    ) -> tuple[_Vectors, BucketTask]:
        contents = task.contents
        compressed = contents.compressed
        summed_as = compressed[0].codec.quantize.summed_as if compressed else "float32"
        wire: torch.dtype = getattr(torch, str(summed_as))
        # Zeros and ones are exact in any dtype; dense parameters keep their precision.
        dtype = sum_dtype(contents.dtype) if contents.runs else wire
        numel, facts = sum(selection.counts), (selection.counts, selection.facts)
        flags = Flags(contents, check_word(contents.digest, sequence, task.step.number, *facts))
        front = len(flags) + contents.dense_numel
        lengths = [(front + numel, dtype)] if dtype == wire else [(front, dtype), (numel, wire)]
        buffers, task = take_buffers(
            task, [(self._buffers, length * dtype.itemsize) for length, dtype in lengths]
        )
        vectors = [
            buffer[: length * dtype.itemsize].view(dtype)
            for buffer, (length, dtype) in zip(buffers, lengths, strict=True)
        ]
        dense = vectors[0][len(flags) : front]
        values = vectors[-1][-numel:] if numel else vectors[-1][:0]
        vectors = [vector for vector in vectors if vector.numel()]
        return _Vectors(selection, flags, dense, values, vectors, buffers), task

    def _fill(self, task: BucketTask, sums: _Vectors) -> None:
        task.check()
        contents, selection = task.contents, sums.selection
        ends = list(itertools.accumulate(selection.counts, initial=0))
        for members in _batches(contents, selection):
            done = selection.encoded.get(members[0])
            outcomes, values = done or self._encode_values(task, selection, members)
            sums.values[ends[members[0]] : ends[members[-1] + 1]] = values
            for index, zero in zip(members, outcomes.zero.tolist(), strict=True):
                if not zero:
                    sums.flags.use(index)
            nbytes = outcomes.count * sums.values.element_size()
            nbytes += [selection.nbytes[index] for index in members]
            contents.counters.encoded(contents.rows[members], outcomes, nbytes)
        if contents.runs:
            pack_dense(task, sums.dense)

    def _encode_values(
        self, task: BucketTask, selection: SharedSelection, members: Sequence[int]
    ) -> tuple[Outcomes, torch.Tensor]:
        """Encode adjacent pieces of a bucket, and read the values from their frames."""
        pieces = [task.contents.pieces[index] for index in members]
        parameters = [piece.parameter for piece in pieces]
        counts = [selection.counts[index] for index in members]
        limits = [
            parameter.codec._codec.max_encoded_len(parameter.numel, count)
            for parameter, count in zip(parameters, counts, strict=True)
        ]
        known = [selection.positions[index] for index in members]
        drawn = any(
            positions is None and count < parameter.numel
            for positions, count, parameter in zip(known, counts, parameters, strict=True)
        )
        numels = [parameter.numel for parameter in parameters]
        frames = self._frames.take(sum(limits), task.step.number, task.bucket)
        try:
            outcomes = self._encode(task, pieces, limits, frames, known)
            for parameter, count, sent in zip(
                parameters, counts, outcomes.count.tolist(), strict=True
            ):
                if sent != count:
                    raise RuntimeError(f"{sent} entries of {parameter.name!r} instead of {count}")
            sizes = outcomes.nbytes.tolist()
            whole = numels if numels == counts else ()
            values, positions = task.bucket.values_of(frames, sizes, whole, drawn)
        finally:
            self._frames.give(frames)  # to this thread, which works in its own order
        if drawn:
            parts = np.split(positions, np.cumsum(counts[:-1]))
            for index, parameter, part in zip(members, parameters, parts, strict=True):
                if part.size < parameter.numel:
                    selection.positions[index] = part
        return outcomes, values

    # The receiving thread ---------------------------------------------------------------------

    def _read_headers(self, flight: InFlightBucket) -> NDArray[np.uint8]:
        sums = flight.payload
        assert isinstance(sums, _Vectors)
        first = sums.vectors[0]
        nbytes = len(sums.flags) * first.element_size()
        return flight.task.bucket.read_headers(first.view(torch.uint8).view(1, -1), nbytes)

    def _combine(self, flight: InFlightBucket, headers: NDArray[np.uint8]) -> None:
        sums, task = flight.payload, flight.task
        assert isinstance(sums, _Vectors)
        try:
            used = read_flags(headers[0], sums.vectors[0].dtype, flight.sequence)
            if used is None:
                share_failure(self.second, task.contents, flight.sequence, sums.error)
            self._write(task, sums, used)
        finally:
            mark = task.bucket.used(*sums.buffers)
            for buffer in sums.buffers:
                self._buffers.give(buffer, mark)

    def _write(self, task: BucketTask, sums: _Vectors, used: Sequence[bool]) -> None:
        start = time.perf_counter()
        self._average(task, sums, used)
        counts = np.array(sums.selection.counts, np.int64)
        share = 1e9 * (time.perf_counter() - start) / max(1, counts.sum())
        task.contents.counters.decoded(task.contents.rows, (counts * share).astype(np.int64))
        start = time.perf_counter()
        if task.contents.runs:
            unpack_dense(task, divide(sums.dense, self.world_size), start)
        if sums.values.dtype == torch.float16 and not task.bucket.finite():
            raise overflow_error(task)  # the sum of finite values on the wire may exceed float16

    def _average(self, task: BucketTask, sums: _Vectors, used: Sequence[bool]) -> None:
        contents, bucket, selection = task.contents, task.bucket, sums.selection
        ends = list(itertools.accumulate(selection.counts, initial=0))
        pieces, values = contents.pieces, sums.values
        places = {
            index: positions + np.int64(pieces[index].start)
            for index, positions in enumerate(selection.positions)
            if positions is not None
        }
        # Pieces together: the overhead per piece would exceed the cost of its entries.
        if places:
            bucket.clear(0, contents.numel)  # dense parameters are written later
            total = _joined(values, ends, list(places))
            bucket.scatter(list(places.values()), self._mean(task, total))
        for members in _batches(contents, selection):
            whole = [index for index in members if index not in places]
            if whole:
                runs = [(pieces[index].start, pieces[index].stop) for index in whole]
                bucket.unpack(runs, self._mean(task, _joined(values, ends, whole)))
        # As far as the ranks can tell these are unused: DDP would discard what is written.
        unused = [piece for piece, sent in zip(pieces, used, strict=True) if not sent]
        task.step.undo([piece.parameter for piece in unused])
        for piece in unused:
            bucket.clear(piece.start, piece.stop)

    def _mean(self, task: BucketTask, total: torch.Tensor) -> torch.Tensor:
        """Return the mean of summed values, in float32 and times the loss scale."""
        mean = divide(total.float(), self.world_size)
        return mean if task.scale == 1.0 else mean.mul_(task.scale)


class AllReduceExchange(ValueSumExchange):
    """Sums the values of all entries, or of those drawn from a shared seed."""

    def _select_shared(self, task: BucketTask, sequence: int) -> SharedSelection:
        pieces = task.contents.pieces
        # Known even if encoding fails.
        counts = [piece.parameter.codec.sparsify.count(piece.parameter.numel) for piece in pieces]
        # The drawn entries depend on the step counts of the states.
        steps = [piece.parameter.step for piece in pieces]
        return SharedSelection(counts, [None] * len(pieces), {}, [0] * len(pieces), steps)


def _joined(values: torch.Tensor, ends: Sequence[int], members: Sequence[int]) -> torch.Tensor:
    """Return the concatenated values of some pieces; without a copy if they are adjacent."""
    first, last = members[0], members[-1]
    if last - first < len(members):
        return values[ends[first] : ends[last + 1]]
    return torch.cat([values[ends[index] : ends[index + 1]] for index in members])


def _batches(contents: BucketContents, selection: SharedSelection) -> Iterator[list[int]]:
    """Divide the pieces of a bucket, in order: encoded ones alone, others with their neighbours."""
    batch: list[int] = []
    numel = 0
    for index, parameter in enumerate(contents.compressed):
        alone = index in selection.encoded
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
