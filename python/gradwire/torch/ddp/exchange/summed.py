"""What the exchanges share that add values up on the wire."""

import abc
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from gradwire.errors import NonFiniteError
from gradwire.quantize import BFloat16, Float16
from gradwire.torch.ddp.errors import ExchangeError, GradientError
from gradwire.torch.ddp.exchange.base import Exchange
from gradwire.torch.ddp.exchange.heads import Head, check_word
from gradwire.torch.ddp.exchange.pieces import (
    accumulator,
    all_finite,
    any_nonzero,
    named,
    overflow,
    pack_dense,
    unpack_dense,
)
from gradwire.torch.ddp.exchange.reasons import pack_reason, raise_first
from gradwire.torch.ddp.jobs import Buffers, Flight, Job
from gradwire.torch.ddp.layout import Layout, Parameter, Piece

__all__ = ["Chosen", "Summed", "wire_dtype"]


def wire_dtype(quantize: object) -> torch.dtype:
    """Return the dtype in which values of a quantizer are added up."""
    if isinstance(quantize, BFloat16):
        return torch.bfloat16
    return torch.float16 if isinstance(quantize, Float16) else torch.float32


@dataclass(slots=True, eq=False)
class Chosen:
    """The entries of one bucket that all ranks send.

    Attributes
    ----------
    counts : list of int
        How many of each piece; the same on every rank, whatever fails.
    positions : list
        Where they are, as uint32; None for all entries of a piece, or until it is encoded.
    error : BaseException or None
        Why this rank has no values for some of them.
    frames : dict
        Frames that are made already, by index of their piece.
    nbytes : list of int
        What choosing took on the wire, for each piece.
    by : object
        What all ranks have to agree on for their positions to be the same.
    collectives, room : int
        What choosing took in collectives, and in bytes of room in them.
    """

    counts: list[int]
    positions: list[NDArray[np.uint32] | None]
    error: BaseException | None
    frames: dict[int, Any]
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
    """Adds up the values of entries that are the same ones on all ranks.

    A rank's vector is the head, the dense parameters, and the values of all pieces. Where dense
    parameters need another dtype than the values, those are a vector of their own.

    Parameters
    ----------
    group, check_result
        As `Exchange` has them.
    reasons : torch.distributed.ProcessGroup
        One that nobody else uses either, for what the receiving thread starts when a rank has
        failed: in one group, collectives of two threads would start in any order.
    """

    def __init__(
        self, group: dist.ProcessGroup, reasons: dist.ProcessGroup, *, check_result: bool
    ) -> None:
        super().__init__(group, check_result=check_result)
        self._reasons: dist.ProcessGroup | None = reasons
        self._buffers = Buffers()
        self._recent: deque[torch.Tensor] = deque(maxlen=32)  # see all_gather.py

    def close(self) -> None:
        """Let go of both groups."""
        super().close()
        self._reasons = None

    # What such an exchange is -----------------------------------------------------------------

    @abc.abstractmethod
    def _choose(self, job: Job, sequence: int) -> Chosen:
        """Agree with the other ranks on positions. Must not raise for what this rank alone has."""

    @abc.abstractmethod
    def _encode(
        self, parameter: Parameter, source: NDArray[Any], positions: NDArray[np.uint32] | None
    ) -> Any:
        """Return the frame of one piece."""

    # The sending thread -----------------------------------------------------------------------

    def send(self, job: Job, sequence: int) -> Flight:
        """Encode a bucket and put its sum under way."""
        start = time.perf_counter()
        chosen = self._choose(job, sequence)
        vectors = self._vectors(job, sequence, chosen)
        try:
            if chosen.error is not None:
                raise chosen.error
            self._fill(job, vectors)
        except Exception as error:  # whatever it is, the other ranks are waiting for these vectors
            vectors.error = error
            vectors.values.zero_()
            vectors.head.clear(0)  # of a word nobody looks at: there is a failure
            vectors.head.fail(bad=isinstance(error, GradientError))
        self.times.add("encode", start)
        return self._start(job, sequence, vectors)

    def _vectors(self, job: Job, sequence: int, chosen: Chosen) -> _Vectors:
        layout = job.layout
        wire = wire_dtype(layout.pieces[0].parameter.codec.quantize if layout.pieces else None)
        # Zeros and ones are exact in any dtype; dense parameters keep their precision.
        own = accumulator(layout.dtype) if layout.runs else wire
        front, numel = Head.numel(layout), sum(chosen.counts)
        lengths = [(front + numel, own)] if own == wire else [(front, own), (numel, wire)]
        taken = [self._buffers.take(length * dtype.itemsize) for length, dtype in lengths]
        whole = [
            buffer[: length * dtype.itemsize].view(dtype)
            for buffer, (length, dtype) in zip(taken, lengths, strict=True)
        ]
        values = whole[-1][-numel:] if numel else whole[-1][:0]
        head = Head(whole[0], layout)
        head.clear(check_word(layout.digest, sequence, job.step.number, chosen.counts, chosen.by))
        return _Vectors(chosen, head, values, [each for each in whole if each.numel()], taken)

    def _fill(self, job: Job, vectors: _Vectors) -> None:
        at = 0
        chosen = vectors.chosen
        for index, (piece, count) in enumerate(zip(job.layout.pieces, chosen.counts, strict=True)):
            start = time.perf_counter()
            parameter = piece.parameter
            frame = chosen.frames.get(index)
            if frame is None:
                try:
                    source = self._gradient(job, piece)
                    frame = self._encode(parameter, source, chosen.positions[index])
                except NonFiniteError as error:
                    raise named(error, piece) from error
                self._encoded(job, piece, source)
            if frame.count != count:
                raise RuntimeError(
                    f"{frame.count} entries of {parameter.name!r} instead of {count}"
                )
            if chosen.positions[index] is None and count < parameter.numel:
                chosen.positions[index] = frame.indices()
            if any_nonzero(job.buffer[piece.start : piece.stop]):
                vectors.head.use(index)
            target = vectors.values[at : at + count]
            target.copy_(torch.from_numpy(frame.values()))
            at += count
            nbytes = chosen.nbytes[index] + target.numel() * target.element_size()
            parameter.tally.encoded(nbytes, parameter.state.last, time.perf_counter() - start)
        if job.layout.runs:
            pack_dense(job, vectors.head.dense)

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
        assert work is not None  # as it is with async_op
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
                f"another rank added up other parameters than this rank at bucket "
                f"{sequence} since attach(): the ranks did not run the same backward passes"
            )
        at = 0
        for index, (piece, count) in enumerate(
            zip(job.layout.pieces, vectors.chosen.counts, strict=True)
        ):
            start = time.perf_counter()
            if sums.used[index]:
                total = vectors.values[at : at + count]
                self._average(job, piece, total, vectors.chosen.positions[index])
            else:
                self._unused(job, piece)
            at += count
            piece.parameter.tally.decoded(time.perf_counter() - start)
        start = time.perf_counter()
        if job.layout.runs:
            unpack_dense(job, vectors.head.dense.div_(self.world_size), start)
        if vectors.values.dtype == torch.float16 and not all_finite(job.buffer):
            raise overflow(job)  # of the sum on the wire, where finite values leave its range

    def _average(
        self, job: Job, piece: Piece, total: torch.Tensor, positions: NDArray[np.uint32] | None
    ) -> None:
        target = job.buffer[piece.start : piece.stop]
        values = total.float().div_(self.world_size)
        if job.scale != 1.0:
            values.mul_(job.scale)
        if positions is None:
            target.copy_(values)
        elif target.dtype == torch.float32:
            target.zero_()
            target.numpy()[positions] = values.numpy()
        else:
            dense = self._float32("receive", target.numel()).zero_()
            dense.numpy()[positions] = values.numpy()
            target.copy_(dense)

    def _raise_failure(self, layout: Layout, error: BaseException | None) -> None:
        """Tell the other ranks the reason of this one, and raise that of the first failing one.

        Every rank comes here for the same buckets, in one order, and no other collective is in
        this group.
        """
        mine = pack_reason(layout, error)
        every = mine.new_empty(self.world_size * mine.numel())
        try:
            dist.all_gather_into_tensor(every, mine, group=self._reasons)
        except RuntimeError as failure:
            raise ExchangeError(f"a rank failed, and could not say why ({failure})") from failure
        raise_first(layout, every.view(self.world_size, -1))
