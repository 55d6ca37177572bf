"""The interface of every exchange, and the code that most of them share."""

import abc
import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypeAlias, final

import numpy as np
import torch
from numpy.typing import NDArray

from gradwire._outside import Selecting
from gradwire.errors import NonFiniteError
from gradwire.torch.backends.interface import Table
from gradwire.torch.engine.metrics import Outcomes, StepTimes
from gradwire.torch.engine.parameter import BucketSlice
from gradwire.torch.engine.step import BucketTask, InFlightBucket, measure
from gradwire.torch.errors import ExchangeError
from gradwire.torch.exchange import sparse
from gradwire.torch.exchange.dense import named, overflow, wait
from gradwire.torch.transport import Channel

__all__ = ["ExchangeBase", "Positions"]

Positions: TypeAlias = Sequence[NDArray[np.uint32] | None]


class ExchangeBase(abc.ABC):
    """Encodes, exchanges and decodes buckets.

    `send` and `receive` run in two threads, each of which sees the buckets in DDP's order, which is
    the same on every rank. So the collectives have the same order everywhere if each job starts the
    same ones on every rank: an exchange must not base decisions on what only one rank knows.

    Parameters
    ----------
    channel : Channel
        A channel with no other user, for the collectives that `send` starts.
    carriers : mapping of str to str
        The kinds of devices on which frames stay, with what moves them; see `Transport.carriers`.
    check_result : bool
        Check results for overflow, because a loss scaler must detect it.

    Attributes
    ----------
    postpones : bool
        A bucket keeps its gradients, and states stay as they are, until `complete`, which is for
        steps that are good as a whole.
    """

    postpones: ClassVar[bool] = False

    def __init__(
        self, channel: Channel, carriers: Mapping[str, str], *, check_result: bool
    ) -> None:
        self._open: Channel | None = channel
        self.carriers = carriers
        self._check_result = check_result
        self.world_size = channel.size
        self.rank = channel.rank
        self.times = StepTimes()

    def close(self) -> None:
        """Release the channel, without closing it."""
        self._open = None

    @property
    def channel(self) -> Channel:
        """The channel for collectives that `send` starts."""
        if self._open is None:
            raise ExchangeError("the exchange was closed")
        return self._open

    # What an exchange is ----------------------------------------------------------------------

    @abc.abstractmethod
    def send(self, job: BucketTask, sequence: int) -> InFlightBucket:
        """Encode a bucket and start its collectives. Never called for a sparse gradient."""

    @abc.abstractmethod
    def _look(self, flight: InFlightBucket) -> NDArray[np.uint8]:
        """Wait for the collectives, and return what tells how all ranks fared."""

    @abc.abstractmethod
    def _combine(self, flight: InFlightBucket, fronts: NDArray[np.uint8]) -> None:
        """Write the average into the job's buffer, once all collectives have completed."""

    @final
    def start(self, job: BucketTask, sequence: int) -> InFlightBucket:
        """Start the exchange of a bucket, sparse or not. Runs in the sending thread."""
        marks = job.mark()
        if job.layout.sparse:
            flight = sparse.send(self.channel, job, sequence)
        else:
            with job.bucket.sending():
                if job.step.measures:
                    measure(job, self.channel)
                flight = self.send(job, sequence)
        flight.marks, marks.sent = marks, time.perf_counter()
        return flight

    @final
    def receive(self, flight: InFlightBucket) -> None:
        """Wait for a bucket and write the average into its buffer. Runs in the receiving thread.

        Raises
        ------
        GradientError
            A gradient was not finite on some rank, or the result overflowed. All ranks raise it.
        ExchangeError
            A collective failed, a rank could not encode, or the ranks are out of step.
        """
        if flight.error is not None:
            raise flight.error
        with flight.job.bucket.receiving():
            self._receive(flight)
        if flight.marks is not None:
            flight.marks.done = time.perf_counter()

    def _receive(self, flight: InFlightBucket) -> None:
        job, is_sparse = flight.job, flight.job.layout.sparse
        start = time.perf_counter()
        for work in flight.works:
            wait(work, flight.sequence)
        fronts = None if is_sparse else self._look(flight)
        start = self.times.add("exchange", start)
        # As in plain DDP: sparse gradients go from all to all, others around a ring.
        sparse_nbytes = flight.room * self.world_size // 2
        dense = sparse_nbytes if is_sparse else job.bucket.nbytes
        self.times.sent(flight.collectives, flight.room, flight.wire, dense)
        if flight.marks is not None:
            flight.marks.arrived = flight.marks.decoding = start
            flight.marks.dense_bytes, flight.marks.wire_bytes = dense, flight.wire
        if fronts is None:
            sparse.combine(flight, check_result=self._check_result)
            return
        self._combine(flight, fronts)
        if not self.postpones:
            self._check(job)
            job.bucket.store()
        self.times.add("decode", start)

    @final
    def complete(self, flight: InFlightBucket) -> None:
        """Do what `receive` has left to do, now that the whole step is good on all ranks."""
        if self.postpones and not flight.job.layout.sparse:
            start = time.perf_counter()
            with flight.job.bucket.receiving():
                self._complete(flight)
            end = self.times.add("decode", start)
            if flight.marks is not None:
                flight.marks.decoding, flight.marks.done = start, end

    def _complete(self, flight: InFlightBucket) -> None:
        """Write memories and averages. Only where an exchange postpones that."""
        raise NotImplementedError

    # What exchanges are made of ---------------------------------------------------------------

    def _check(self, job: BucketTask) -> None:
        """Raise a GradientError if the scaler must hear of the result."""
        if self._check_result and not job.bucket.finite():
            raise overflow(job)

    def _encode(
        self,
        job: BucketTask,
        members: Sequence[int],
        limits: Sequence[int],
        out: torch.Tensor,
        given: Positions | None = None,
    ) -> Outcomes:
        """Encode pieces of a bucket, and record them in the step so that it can undo them.

        Parameters
        ----------
        job : BucketTask
        members : sequence of int
            Indices of the pieces.
        limits : sequence of int
            Maximum size of each frame in bytes.
        out : torch.Tensor
            uint8; receives the frames, one after another.
        given : sequence, optional
            The positions to send of each piece, as uint32; None lets its codec select.

        Raises
        ------
        GradientError
            A gradient is not finite.
        """
        job.check()
        if not members:
            return Outcomes.of(np.empty(0, np.int64))
        pieces = [job.layout.pieces[index] for index in members]
        parameters = [piece.parameter for piece in pieces]
        table, error = job.bucket.encode(
            [parameter.codec for parameter in parameters],
            [parameter.state for parameter in parameters],
            [end for piece in pieces for end in (piece.start, piece.stop)],
            limits,
            self._select(job, pieces) if given is None else given,
            out,
            job.scale,
            deferred=self.postpones,
        )
        outcomes = self._outcomes(job, table)
        for piece in pieces[: len(outcomes)]:
            self._encoded(job, piece)
        if isinstance(error, NonFiniteError):
            raise named(error, pieces[len(outcomes)]) from error
        if error is not None:
            raise error
        return outcomes

    def _outcomes(self, job: BucketTask, table: Table) -> Outcomes:
        """Read what an encode has told."""
        outcomes = Outcomes.of(table)
        if not job.unused:
            outcomes.zero[:] = 0
        return outcomes

    def _select(self, job: BucketTask, pieces: Sequence[BucketSlice]) -> Positions:
        """Return the positions that Python sparsifiers select; None for built-in sparsifiers."""
        positions: list[NDArray[np.uint32] | None] = []
        for piece in pieces:
            encoder = piece.parameter.codec._encoder
            chosen = None
            if isinstance(encoder, Selecting):
                try:
                    chosen = encoder.positions(self._gradient(job, piece), piece.parameter.state)
                except NonFiniteError as error:
                    raise named(error, piece) from error
            positions.append(chosen)
        return positions

    def _gradient(self, job: BucketTask, piece: BucketSlice) -> NDArray[Any]:
        """Return a gradient without the loss scale, as an array that a codec can read in place."""
        return job.bucket.gradient(piece.start, piece.stop, job.scale)

    def _encoded(self, job: BucketTask, piece: BucketSlice) -> None:
        """Record that a gradient was encoded, for undoing the step and measuring the gradient."""
        measured = piece.parameter.measured is not None
        job.step.encode(piece.parameter, self._gradient(job, piece) if measured else None)

    def _unused(self, job: BucketTask, pieces: Sequence[BucketSlice]) -> None:
        """Roll back parameters whose gradients are zero on every rank.

        As far as the ranks can tell they are unused, and DDP would discard what is written.
        """
        job.step.undo([each.parameter for each in pieces])
        for each in pieces:
            job.bucket.clear(each.start, each.stop)
