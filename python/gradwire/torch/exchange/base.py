"""The exchange of one bucket: the machine of two threads, and the base of what is exchanged."""

import abc
import operator
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from gradwire._outside import SelectingCodec
from gradwire.exchange import AllReduce
from gradwire.exchange import Exchange as Part
from gradwire.torch.engine.bucket_contents import BucketContents
from gradwire.torch.engine.metrics import Outcomes, StepTimes
from gradwire.torch.engine.parameter import BucketSlice
from gradwire.torch.engine.step import BucketTask, BufferPool, InFlightBucket
from gradwire.torch.errors import ExchangeError
from gradwire.torch.exchange.dense import naming, overflow_error, take_buffers
from gradwire.torch.exchange.wire import ALL_BITS, Checksum, Verdict, wait
from gradwire.torch.transport import Channel, Work

_IS_CPU = operator.attrgetter("is_cpu")

Positions: TypeAlias = Sequence[NDArray[np.uint32] | None]


class BucketExchange(Protocol):
    """The interface of both exchanges: directly between ranks, or inside nodes first."""

    times: StepTimes  # running sums of all buckets
    device_backends: Mapping[str, str]  # of the device types on which frames stay

    def start(self, task: BucketTask, sequence: int) -> InFlightBucket:
        """Start the exchange of a bucket, sparse or not, in the sending thread."""

    def receive(self, flight: InFlightBucket) -> None:
        """Wait for a bucket and write the average into its buffer, in the receiving thread.

        All ranks raise a GradientError if a gradient was not finite on some rank, or the result
        overflowed; an ExchangeError if a collective failed, a rank could not encode, or the ranks
        are out of step.
        """

    def close(self) -> None:
        """Release the channels, without closing them, and memory."""


class AverageChecksums:
    """The checksum of the last average of each bucket, sent with the next exchange of that bucket.

    By then all buckets of the step have been averaged, on every rank. All exchanges that decode
    frames write the same bits on every rank, whatever its hardware. So a difference means that a
    link, a memory or a decoder has changed a value, and that the replicas have drifted apart.
    """

    def __init__(self) -> None:
        self._last: dict[int, tuple[int, float, int | torch.Tensor]] = {}

    def note(self, flight: InFlightBucket) -> None:
        """Record the checksum of the average that a bucket holds."""
        task = flight.task
        total = task.bucket.checksum()
        self._last[task.contents.digest] = flight.sequence + 1, task.scale, total

    def last(self, contents: BucketContents) -> Checksum:
        """Return the checksum of a bucket's last average, or one that matches any other."""
        number, scale, total = self._last.get(contents.digest, Checksum())
        return Checksum(number, scale, int(total) & ALL_BITS)

    def unread(self, contents: BucketContents) -> tuple[Checksum, torch.Tensor | None]:
        """Return the same without waiting: a total that is on a device is returned separately."""
        number, scale, total = self._last.get(contents.digest, Checksum())
        if isinstance(total, torch.Tensor):
            return Checksum(number, scale), total
        return self.last(contents), None

    def compare(self, contents: BucketContents, verdicts: Sequence[Verdict]) -> None:
        """Raise an ExchangeError, the same on all ranks, if the averages of two ranks differ."""
        first: dict[tuple[int, float], tuple[int, int]] = {}
        for rank, verdict in enumerate(verdicts):
            number, scale, total = verdict.checksum
            other, expected = first.setdefault((number, scale), (rank, total))
            if number and total != expected:
                raise ExchangeError(
                    f"ranks {other} and {rank} got different averages from the same frames in the "
                    f"previous step, for the bucket with {contents.names[0]!r}: a link, memory or "
                    "a device has changed bytes. Their parameters have differed since: restart "
                    "from a checkpoint",
                    rank,
                )


class RankExchange:
    """Takes every bucket through the same states: sent, headers read, averages written.

    `start` and `receive` run in two threads, each of which sees the buckets in DDP's order, which
    is the same on every rank. So the collectives have the same order everywhere if each bucket
    starts the same ones on every rank: nothing that only one rank knows may decide on them.

    The exchange is ``part``, or if that is None, that of the codecs of each bucket; ``kind_of``
    returns the class for it, or for sparse buckets if it is given None. The channels are used by
    nothing else: one is for the collectives that `Transfer.send` starts, and ``second`` for those
    of the receiving thread, as collectives of two threads would start in undefined order. With
    ``check_result``, an average that overflows is an error, which a loss scaler must learn of.
    """

    def __init__(
        self,
        part: Part | None,
        kind_of: Callable[[Part | None], type["Transfer"]],
        channel: Channel,
        second: Channel | None,
        device_backends: Mapping[str, str],
        *,
        check_result: bool,
    ) -> None:
        self._part = part
        self._kind_of = kind_of
        self._kinds: dict[Part | None, type[Transfer]] = {}
        if part is not None:
            self._kinds[part] = kind_of(part)
        self._channels: tuple[Any, Any] | None = channel, second
        self.device_backends = device_backends
        self.check_result = check_result
        self.world_size = channel.size
        self.rank = channel.rank
        self.times = StepTimes()
        self._received = 0.0  # when the last bucket was done, by time.perf_counter
        self.checksums = AverageChecksums()  # where averages are decoded
        self.frames = BufferPool()  # for what this rank encodes
        self.buffers = BufferPool()  # for what collectives fill
        # Gloo's threads release a collective's tensors shortly after it completes. If these had no
        # reference here, those threads would need the GIL to free them, and old releases of torch
        # (such as 2.4) hold the GIL while they wait for those threads to end. One bucket's messages
        # between owners are 8 tensors, some as long as all of its frames.
        divides = part is not None and part.divides
        self.recent: deque[torch.Tensor] = deque(maxlen=8 if divides else 32)

    def close(self) -> None:
        """Release the channels, without closing them, and memory."""
        self._channels = None
        self.frames.clear()
        self.buffers.clear()

    @property
    def channels(self) -> tuple[Any, Any]:
        """The channels of the sending and of the receiving thread."""
        if self._channels is None:
            raise ExchangeError("the exchange was closed")
        return self._channels

    def start(self, task: BucketTask, sequence: int) -> InFlightBucket:
        """Start the exchange of a bucket, sparse or not."""
        part, compressed = self._part, task.contents.compressed
        if part is None:
            part = compressed[0].codec.exchange if compressed else AllReduce()
        key = None if task.contents.sparse else part
        kind = self._kinds.get(key)
        if kind is None:
            kind = self._kinds[key] = self._kind_of(key)
        flight = kind(self, part, task, sequence)
        with task.bucket.sending():
            if task.read_scale is not None:
                try:
                    task.scale = task.read_scale()
                except BaseException as error:  # of any kind: the other ranks wait
                    task.error = task.error or error
            if task.contents.computed and self.world_size > 1:
                from gradwire.torch.engine.square_ratio import find_due, measure

                if due := find_due(task):
                    flight.collectives = 1
                    flight.room = measure(task, due, self.channels[0])
                    flight.wire = 2 * flight.room * (self.world_size - 1) / self.world_size
            flight.send()
        flight.sent = time.perf_counter()
        return flight

    def receive(self, flight: InFlightBucket) -> None:
        """Wait for a bucket and write the average into its buffer; see `BucketExchange.receive`."""
        if flight.error is not None:
            raise flight.error
        assert isinstance(flight, Transfer)
        bucket, times = flight.bucket, self.times
        with bucket.receiving():
            # Buckets that are on their way from 0 to 10 ms and from 4 to 12 ms count 12 ms.
            start = max(flight.sent, self._received)
            for work in flight.works:
                wait(work, flight.sequence)
            try:
                flight.read_headers()
                start = times.add("exchange", start)
                times.sent(flight.collectives, flight.room, flight.wire, flight.dense_nbytes)
                flight.combine()
                flight.deliver()
            finally:
                flight.release()
            # A scaler must learn of a result that overflowed.
            if self.check_result and not (flight.finite or bucket.finite()):
                raise overflow_error(flight.task)
            bucket.store(flight.result)
            self._received = times.add("decode", start)


class Transfer(InFlightBucket, abc.ABC):
    """One bucket in a `RankExchange`; each kind of exchange is a subclass of three methods.

    What they leave for each other are attributes. The collectives that `send` starts are waited for
    before `read_headers` is called; memory that it takes is reused after `combine`.
    """

    def __init__(self, exchange: RankExchange, part: Part, task: BucketTask, sequence: int) -> None:
        super().__init__(task, sequence)
        self.exchange, self.part = exchange, part
        self.contents, self.bucket = task.contents, task.bucket
        self.works: list[Work] = []  # collectives to wait for
        self._memory: list[torch.Tensor] = []
        self.collectives = 0  # including completed ones
        self.room = 0  # bytes that this rank passes to them, including unused room
        self.wire = 0.0  # bytes that this rank sends
        self.dense_nbytes = self.bucket.nbytes  # of what plain DDP sends around a ring
        self.sent = 0.0  # by time.perf_counter: the collectives were started
        self.finite = False  # whether its average is known to be
        self.result: torch.Tensor | None = None  # a sparse average, which is no part of the bucket

    @abc.abstractmethod
    def send(self) -> None:
        """Encode the bucket and start its collectives, whatever fails: the other ranks wait."""

    @abc.abstractmethod
    def read_headers(self) -> None:
        """Read what all ranks tell of the bucket; an error may be left to `combine`."""

    @abc.abstractmethod
    def combine(self) -> None:
        """Write the average into the bucket, or raise the error in the headers."""

    # What these are made of -------------------------------------------------------------------

    def deliver(self) -> None:
        """Have averages of changes become the estimates that all ranks share, which they change.

        An encode that is undone, at whatever time, takes the change of the estimate back with it.
        """
        for piece in self.contents.estimates:
            values = self.bucket.values[piece.start : piece.stop]
            mean = values.to("cpu", torch.float32)
            with naming(piece):
                piece.parameter.state.deliver(mean.numpy(), self.task.scale)
            if mean is not values:
                values.copy_(mean)

    def take(self, *sizes: int) -> list[torch.Tensor]:
        """Take memory for collectives, until these are done; see `take_buffers`."""
        self._memory = take_buffers(self.task, self.exchange.buffers, *sizes)
        return self._memory

    def release(self) -> None:
        """Give the memory back, once the work of the receiving thread on it is done."""
        if self._memory:
            mark = self.bucket.used(*self._memory)
            for tensor in self._memory:
                self.exchange.buffers.give(tensor, mark)

    def begin(
        self, collective: Callable[..., Work], *tensors: torch.Tensor, room: int, sent: float
    ) -> None:
        """Start a collective on these tensors, which are kept for a while, and count it."""
        self.exchange.recent.extend(filter(_IS_CPU, tensors))
        self.works.append(collective(*tensors))
        self.collectives += 1
        self.room += room
        self.wire += sent

    def encode(
        self,
        pieces: Sequence[BucketSlice],
        limits: Sequence[int],
        out: torch.Tensor,
        positions: Positions = (),
    ) -> Outcomes:
        """Encode pieces of the bucket, and record them in the step so that it can undo them.

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
                    gradient = self._gradient(piece)
                    positions[index] = codec._encoder.positions(gradient, state)
        scale = self.task.scale
        table, error = self.bucket.encode(codecs, states, ends, limits, positions, out, scale)
        outcomes = Outcomes.of(table, zero=self.task.unused)
        done = outcomes.nbytes.size
        self.record(pieces[:done])
        if error is not None:
            with naming(pieces[done]):
                raise error
        return outcomes

    def _gradient(self, piece: BucketSlice) -> NDArray[Any]:
        """Return a gradient without the loss scale, as an array that a codec can read in place."""
        return self.bucket.gradient(piece.start, piece.stop, self.task.scale)

    def record(self, pieces: Sequence[BucketSlice]) -> None:
        """Record encodes in the step, which may undo them; measure gradients if asked to."""
        encoded = self.task.step.encoded
        for piece in pieces:
            parameter = piece.parameter
            encoded[parameter.name] = parameter
            if parameter.measured is not None:
                parameter.measure(self._gradient(piece))
