"""Exchanges that sum values: all entries, random ones, those of a leader, or sparse gradients."""

import abc
import itertools
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import override

from gradwire.torch.engine.metrics import Outcomes
from gradwire.torch.errors import GradientError
from gradwire.torch.exchange import wire
from gradwire.torch.exchange.base import Transfer
from gradwire.torch.exchange.dense import (
    divide,
    overflow_error,
    pack_dense,
    sum_dtype,
    unpack_dense,
)
from gradwire.torch.exchange.wire import Flags, check_word, read_flags, share_failure

_SPARSE_NBYTES = 96  # of a message, with room for the numbers of a GradientError
_BATCH = 1 << 18
"""Largest number of entries encoded in one call, unless a single parameter has more. It limits the
memory of their frames, which is needed in addition to the vectors."""


class SummedBucket(Transfer):
    """One bucket whose values are summed, of entries that are the same on all ranks.

    A rank's vector consists of flags, the dense parameters, and the values of all pieces. If the
    dense parameters need another dtype than the values, the values are a second vector.
    """

    counts: list[int]  # entries of each piece: the same on every rank, even after a failure
    positions: list[NDArray[np.uint32] | None]  # None for all entries, or until it is encoded
    flags: Flags  # at the start of the first vector; written last
    dense: torch.Tensor  # where dense parameters are in the vectors
    values: torch.Tensor  # where the values of all pieces are
    vectors: list[torch.Tensor]  # one or two
    failure: BaseException | None = None  # why this rank sums nothing but the flags
    used: Sequence[bool]  # by any rank, of each piece

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        # Values of pieces that are encoded already, and bytes on the wire for their positions.
        self.encoded: dict[int, tuple[Outcomes, torch.Tensor]] = {}
        self.nbytes = [0] * len(self.contents.pieces)

    # The sending thread -----------------------------------------------------------------------

    @abc.abstractmethod
    def select(self) -> object:
        """Agree with the other ranks on counts and positions, or fail later, in `failure`.

        Returns what all ranks must agree on to select the same positions.
        """

    @override
    def send(self) -> None:
        start, ranks = time.perf_counter(), self.exchange.world_size
        self._take_vectors(self.select())
        try:
            if self.failure is not None:
                raise self.failure
            self._fill()
        except BaseException as error:  # of any kind: the other ranks wait for these vectors
            self.failure = error
            for vector in self.vectors:
                vector.zero_()
            self.flags.fail()
        first = self.vectors[0]
        self.bucket.write_header(first.view(torch.uint8), self.flags.bytes_of(first.dtype))
        self.exchange.times.add("encode", start)
        add, share = self.exchange.channels[0].all_reduce, (ranks - 1) / ranks
        for vector in self.vectors:
            self.begin(add, vector, room=vector.nbytes, sent=2 * vector.nbytes * share)

    def _take_vectors(self, facts: object) -> None:
        contents, step = self.contents, self.task.step.number
        compressed = contents.compressed
        summed_as = compressed[0].codec.quantize.summed_as if compressed else "float32"
        sent_as: torch.dtype = getattr(torch, str(summed_as))
        # Zeros and ones are exact in any dtype; dense parameters keep their precision.
        dtype = sum_dtype(contents.dtype) if contents.runs else sent_as
        word = check_word(contents.digest, self.sequence, step, self.counts, facts)
        flags = self.flags = Flags(contents, word)
        numel, front = sum(self.counts), len(flags) + contents.dense_numel
        lengths = (
            [(front + numel, dtype)] if dtype == sent_as else [(front, dtype), (numel, sent_as)]
        )
        buffers = self.take(*[length * dtype.itemsize for length, dtype in lengths])
        vectors = [
            buffer[: length * dtype.itemsize].view(dtype)
            for buffer, (length, dtype) in zip(buffers, lengths, strict=True)
        ]
        self.dense = vectors[0][len(flags) : front]
        self.values = vectors[-1][-numel:] if numel else vectors[-1][:0]
        self.vectors = [vector for vector in vectors if vector.numel()]

    def _fill(self) -> None:
        if self.task.error is not None:
            raise self.task.error
        contents = self.contents
        ends = list(itertools.accumulate(self.counts, initial=0))
        for members in self._batches():
            done = self.encoded.get(members[0])
            outcomes, values = done or self._encode_values(members)
            self.values[ends[members[0]] : ends[members[-1] + 1]] = values
            for index, zero in zip(members, outcomes.zero.tolist(), strict=True):
                if not zero:
                    self.flags.use(index)
            nbytes = outcomes.count * self.values.element_size()
            nbytes += [self.nbytes[index] for index in members]
            contents.counters.encoded(contents.rows[members], outcomes, nbytes)
        if contents.runs:
            pack_dense(self.task, self.dense)

    def _encode_values(self, members: Sequence[int]) -> tuple[Outcomes, torch.Tensor]:
        """Encode adjacent pieces of the bucket, and read the values from their frames."""
        pieces = [self.contents.pieces[index] for index in members]
        parameters = [piece.parameter for piece in pieces]
        counts = [self.counts[index] for index in members]
        limits = [
            parameter.codec._codec.max_encoded_len(parameter.numel, count)
            for parameter, count in zip(parameters, counts, strict=True)
        ]
        known = [self.positions[index] for index in members]
        numels = [parameter.numel for parameter in parameters]
        drawn = any(
            positions is None and count < numel
            for positions, count, numel in zip(known, counts, numels, strict=True)
        )
        pool = self.exchange.frames
        frames = pool.take(sum(limits), self.task.step.number, self.bucket)
        try:
            outcomes = self.encode(pieces, limits, frames, known)
            for parameter, count, sent in zip(
                parameters, counts, outcomes.count.tolist(), strict=True
            ):
                if sent != count:
                    raise RuntimeError(f"{sent} entries of {parameter.name!r} instead of {count}")
            sizes = outcomes.nbytes.tolist()
            whole = numels if numels == counts else ()
            values, positions = self.bucket.values_of(frames, sizes, whole, drawn)
        finally:
            pool.give(frames)  # to this thread, which works in its own order
        if drawn:
            parts = np.split(positions, np.cumsum(counts[:-1]))
            for index, numel, part in zip(members, numels, parts, strict=True):
                if part.size < numel:
                    self.positions[index] = part
        return outcomes, values

    # The receiving thread ---------------------------------------------------------------------

    @override
    def read_headers(self) -> None:
        first, contents = self.vectors[0], self.contents
        nbytes = len(self.flags) * first.element_size()
        header = self.bucket.read_headers(first.view(torch.uint8).view(1, -1), nbytes)[0]
        used = read_flags(header, first.dtype, self.sequence)
        if used is None:
            share_failure(self.exchange.channels[1], contents, self.sequence, self.failure)
        self.used = used

    @override
    def combine(self) -> None:
        start, contents = time.perf_counter(), self.contents
        self._average()
        counts = np.array(self.counts, np.int64)
        share = 1e9 * (time.perf_counter() - start) / max(1, counts.sum())
        contents.counters.decoded(contents.rows, (counts * share).astype(np.int64))
        start = time.perf_counter()
        if contents.runs:
            unpack_dense(self.task, divide(self.dense, self.exchange.world_size), start)
        if self.values.dtype == torch.float16 and not self.bucket.finite():
            raise overflow_error(self.task)  # sums of finite values may exceed float16

    def _average(self) -> None:
        bucket, pieces, values = self.bucket, self.contents.pieces, self.values
        ends = list(itertools.accumulate(self.counts, initial=0))
        places = {
            index: positions + np.int64(pieces[index].start)
            for index, positions in enumerate(self.positions)
            if positions is not None
        }
        # Pieces together: the overhead per piece would exceed the cost of its entries.
        if places:
            bucket.clear(0, self.contents.numel)  # dense parameters are written later
            total = _joined(values, ends, list(places))
            bucket.scatter(list(places.values()), self._mean(total))
        for members in self._batches():
            whole = [index for index in members if index not in places]
            if whole:
                runs = [(pieces[index].start, pieces[index].stop) for index in whole]
                bucket.unpack(runs, self._mean(_joined(values, ends, whole)))
        # As far as the ranks can tell these are unused: DDP would discard what is written.
        unused = [piece for piece, sent in zip(pieces, self.used, strict=True) if not sent]
        self.task.step.undo([piece.parameter for piece in unused])
        for piece in unused:
            bucket.clear(piece.start, piece.stop)

    def _mean(self, total: torch.Tensor) -> torch.Tensor:
        """Return the mean of summed values, in float32 and times the loss scale."""
        mean, scale = divide(total.float(), self.exchange.world_size), self.task.scale
        return mean if scale == 1.0 else mean.mul_(scale)

    def _batches(self) -> Iterator[list[int]]:
        """Divide the pieces, in order: encoded ones alone, others with their neighbours."""
        batch: list[int] = []
        numel = 0
        for index, parameter in enumerate(self.contents.compressed):
            alone = index in self.encoded
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


class ReducedBucket(SummedBucket):
    """Sums the values of all entries, or of those drawn from a shared seed."""

    @override
    def select(self) -> object:
        parameters = self.contents.compressed
        # Known even if encoding fails.
        self.counts = [slot.codec.sparsify.count(slot.numel) for slot in parameters]
        self.positions = [None] * len(parameters)
        # The drawn entries depend on the step counts of the states.
        return [slot.step for slot in parameters]


def _joined(values: torch.Tensor, ends: Sequence[int], members: Sequence[int]) -> torch.Tensor:
    """Return the concatenated values of some pieces; without a copy if they are adjacent."""
    first, last = members[0], members[-1]
    if last - first < len(members):
        return values[ends[first] : ends[last + 1]]
    return torch.cat([values[ends[index] : ends[index + 1]] for index in members])


class SparseBucket(Transfer):
    """One bucket that is a sparse tensor, as of `nn.Embedding`: messages, and a sum as in DDP."""

    messages: torch.Tensor  # of all ranks
    total: torch.Tensor

    @override
    def send(self) -> None:
        channel, (piece,) = self.exchange.channels[0], self.contents.dense
        self.total = self.bucket.sparse().div(channel.size).coalesce()
        count, first = _not_finite(self.total)
        error = GradientError(count, first, piece.parameter.name, channel.rank) if count else None
        message = np.zeros(_SPARSE_NBYTES, np.uint8)
        wire.write_verdict(message, self.contents.digest, self.sequence, error)
        mine = torch.from_numpy(message)
        self.messages = mine.new_empty(channel.size * _SPARSE_NBYTES)
        others = channel.size - 1
        sent = _SPARSE_NBYTES * others
        self.begin(channel.all_gather, self.messages, mine, room=_SPARSE_NBYTES, sent=sent)
        nbytes = self.total.indices().nbytes + self.total.values().nbytes
        self.begin(channel.all_reduce, self.total, room=nbytes, sent=nbytes * others)
        self.dense_nbytes = self.room * channel.size // 2  # it goes from all to all

    @override
    def read_headers(self) -> None:
        rows = self.messages.view(-1, _SPARSE_NBYTES).numpy()
        for verdict in wire.read_verdicts(rows, self.contents.digest, self.sequence, raises=False):
            error = verdict.error
            if isinstance(error, GradientError):
                name = self.contents.names[0]  # of which the message has only the beginning
                raise GradientError(error.count, error.first, name, error.rank)

    @override
    def combine(self) -> None:
        start, contents = time.perf_counter(), self.contents
        if self.exchange.check_result:
            count, first = _not_finite(self.total.coalesce())
            if count:
                raise GradientError(count, first, contents.names[0], 0)
        self.result, self.finite = self.total, True
        nanoseconds = round(1e9 * (time.perf_counter() - start))
        contents.counters.dense(contents.dense_rows, np.array([self.room]), nanoseconds)


def _not_finite(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the number of non-finite entries, and the flat position of the first."""
    bad = ~torch.isfinite(tensor.values())
    count = int(bad.sum())
    if not count:
        return 0, 0
    entry, *rest = bad.nonzero()[0].tolist()
    position = 0
    indices = tensor.indices()[:, entry].tolist() + rest
    for index, length in zip(indices, tensor.shape, strict=True):
        position = position * length + index
    return count, position
