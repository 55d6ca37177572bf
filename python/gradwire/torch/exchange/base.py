"""The interface of every exchange, and the code that most of them share."""

import abc
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol, TypeAlias, final

import numpy as np
import torch
from numpy.typing import NDArray

from gradwire._outside import SelectingCodec
from gradwire.torch.backends import Table
from gradwire.torch.engine.metrics import Outcomes, StepTimes
from gradwire.torch.engine.parameter import BucketSlice
from gradwire.torch.engine.step import BucketTask, BufferPool, InFlightBucket
from gradwire.torch.errors import ExchangeError
from gradwire.torch.exchange.checksums import AverageChecksums
from gradwire.torch.exchange.dense import naming, overflow_error, receive_sparse, send_sparse
from gradwire.torch.exchange.squares import find_due, measure
from gradwire.torch.exchange.wire import wait
from gradwire.torch.transport import Channel

Positions: TypeAlias = Sequence[NDArray[np.uint32] | None]


class BucketExchange(Protocol):
    """The interface of all exchanges: directly between ranks, or inside nodes first.

    `start` runs in the sending thread, `receive` in the receiving thread.
    """

    @property
    def times(self) -> StepTimes:
        """Running sums of all buckets."""

    @property
    def device_backends(self) -> Mapping[str, str]:
        """The device types on which frames stay, with the communication backend for each."""

    def start(self, task: BucketTask, sequence: int) -> InFlightBucket:
        """Start the exchange of a bucket, sparse or not."""

    def receive(self, flight: InFlightBucket) -> None:
        """Wait for a bucket and write the average into its buffer.

        All ranks raise a GradientError if a gradient was not finite on some rank, or the result
        overflowed; an ExchangeError if a collective failed, a rank could not encode, or the ranks
        are out of step.
        """

    def close(self) -> None:
        """Release the channels, without closing them, and memory."""


class ExchangeBase(abc.ABC):
    """Encodes, exchanges and decodes buckets.

    `start` and `receive` run in two threads, each of which sees the buckets in DDP's order, which
    is the same on every rank. So the collectives have the same order everywhere if each bucket
    starts the same ones on every rank: an exchange must not base decisions on what only one rank
    knows.

    Its channels are used by nothing else: one is for the collectives that `send` starts, and
    ``second`` for those of the receiving thread, as collectives of two threads would start in
    undefined order. With ``check_result``, an average that overflows is an error, which a loss
    scaler must learn of.
    """

    _KEPT: ClassVar[int] = 32

    def __init__(
        self,
        channel: Channel,
        device_backends: Mapping[str, str],
        *,
        check_result: bool,
        second: Channel | None = None,
    ) -> None:
        self._channels: tuple[Channel, Channel | None] | None = channel, second
        self.device_backends = device_backends
        self._check_result = check_result
        self.world_size = channel.size
        self.rank = channel.rank
        self.times = StepTimes()
        self._received = 0.0  # when the last bucket was done, by time.perf_counter
        self._checksums = AverageChecksums()  # where averages are decoded
        self._frames = BufferPool()  # for what this rank encodes
        self._buffers = BufferPool()  # for what collectives fill
        # Gloo's threads release a collective's tensors shortly after it completes. If these had no
        # reference here, those threads would need the GIL to free them, and old releases of torch
        # (such as 2.4) hold the GIL while they wait for those threads to end.
        self._recent: deque[torch.Tensor] = deque(maxlen=self._KEPT)

    def close(self) -> None:
        """Release the channels, without closing them, and memory."""
        self._channels = None
        self._frames.clear()
        self._buffers.clear()

    @property
    def channel(self) -> Channel:
        """The channel for collectives that `send` starts."""
        if self._channels is None:
            raise ExchangeError("the exchange was closed")
        return self._channels[0]

    @property
    def second(self) -> Channel:
        """The channel for collectives of the receiving thread."""
        second = None if self._channels is None else self._channels[1]
        if second is None:
            raise ExchangeError("the exchange was closed")
        return second

    def _keep(self, *tensors: torch.Tensor) -> None:
        """Keep tensors of a collective for a while, if they are on the host."""
        for tensor in tensors:
            if tensor.is_cpu:
                self._recent.append(tensor)

    # What an exchange is ----------------------------------------------------------------------

    @abc.abstractmethod
    def send(self, task: BucketTask, sequence: int) -> InFlightBucket:
        """Encode a bucket and start its collectives. Never called for a sparse gradient."""

    @abc.abstractmethod
    def _read_headers(self, flight: InFlightBucket) -> NDArray[np.uint8]:
        """Return the headers of all ranks, once the collectives of `send` have completed."""

    @abc.abstractmethod
    def _combine(self, flight: InFlightBucket, headers: NDArray[np.uint8]) -> None:
        """Write the average into the task's buffer, or raise the error in the headers."""

    @final
    def start(self, task: BucketTask, sequence: int) -> InFlightBucket:
        """Start the exchange of a bucket, sparse or not."""
        if task.contents.sparse:
            flight = send_sparse(self.channel, task, sequence)
        else:
            with task.bucket.sending():
                try:
                    task.scale = task.read_scale()
                except BaseException as error:  # of any kind: the other ranks wait
                    task.error = task.error or error
                due = find_due(task)
                nbytes = measure(task, due, self.channel) if due else 0
                flight = self.send(task, sequence)
            if nbytes:
                sent = 2 * nbytes * (self.world_size - 1) / self.world_size
                self._count(flight, nbytes, sent)
        flight.sent = time.perf_counter()
        return flight

    @final
    def receive(self, flight: InFlightBucket) -> None:
        """Wait for a bucket and write the average into its buffer; see `BucketExchange.receive`."""
        if flight.error is not None:
            raise flight.error
        task, sparse = flight.task, flight.task.contents.sparse
        with task.bucket.receiving():
            # Time in which several buckets are on their way counts once.
            start = max(flight.sent or time.perf_counter(), self._received)
            for work in flight.works:
                wait(work, flight.sequence)
            headers = None if sparse else self._read_headers(flight)
            start = self.times.add("exchange", start)
            # As in plain DDP: sparse gradients go from all to all, others around a ring.
            dense = flight.room * self.world_size // 2 if sparse else task.bucket.nbytes
            self.times.sent(flight.collectives, flight.room, flight.wire, dense)
            if headers is None:
                receive_sparse(flight, check_result=self._check_result)
            else:
                self._combine(flight, headers)
                # A scaler must learn of a result that overflowed.
                if self._check_result and not (flight.finite or task.bucket.finite()):
                    raise overflow_error(task)
                task.bucket.store()
                self.times.add("decode", start)
        self._received = time.perf_counter()

    def _count(self, flight: InFlightBucket, room: int, sent: float) -> None:
        """Count one more collective of a bucket."""
        flight.collectives += 1
        flight.room += room
        flight.wire += sent

    # What exchanges are made of ---------------------------------------------------------------

    def _encode(
        self,
        task: BucketTask,
        pieces: Sequence[BucketSlice],
        limits: Sequence[int],
        out: torch.Tensor,
        positions: Positions = (),
    ) -> Outcomes:
        """Encode pieces of a bucket, and record them in the step so that it can undo them.

        The frames, of limited sizes, are concatenated in ``out``. They have the given positions of
        each piece; where these are None, its codec selects. Raises a GradientError if a gradient is
        not finite.
        """
        if not pieces:
            return Outcomes.of(np.empty(0, np.int64))
        codecs, states, ends = [], [], []
        positions = list(positions) or [None] * len(pieces)
        for index, piece in enumerate(pieces):
            codec, state = piece.parameter.codec, piece.parameter.state
            codecs.append(codec)
            states.append(state)
            ends += [piece.start, piece.stop]
            if positions[index] is None and isinstance(codec._encoder, SelectingCodec):
                with naming(piece):
                    gradient = self._gradient(task, piece)
                    positions[index] = codec._encoder.positions(gradient, state)
        table, error = task.bucket.encode(codecs, states, ends, limits, positions, out, task.scale)
        outcomes = self._outcomes(task, table)
        done = outcomes.nbytes.size
        self._record(task, pieces[:done])
        if error is not None:
            with naming(pieces[done]):
                raise error
        return outcomes

    def _gradient(self, task: BucketTask, piece: BucketSlice) -> NDArray[Any]:
        """Return a gradient without the loss scale, as an array that a codec can read in place."""
        return task.bucket.gradient(piece.start, piece.stop, task.scale)

    def _outcomes(self, task: BucketTask, table: Table) -> Outcomes:
        """Read the table of an encode."""
        outcomes = Outcomes.of(table)
        if not task.unused:
            outcomes.zero[:] = 0
        return outcomes

    def _record(self, task: BucketTask, pieces: Sequence[BucketSlice]) -> None:
        """Record encodes in the step, which may undo them; measure gradients if asked to."""
        for piece in pieces:
            parameter = piece.parameter
            task.step.encoded[parameter.name] = parameter
            if parameter.measured is not None:
                parameter.measure(self._gradient(task, piece))
