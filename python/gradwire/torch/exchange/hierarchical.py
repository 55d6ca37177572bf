"""The exchange in two levels: uncompressed inside a node, frames between the nodes."""

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch

from gradwire.torch import backends
from gradwire.torch.engine.step import BucketTask, BufferPool, InFlightBucket
from gradwire.torch.errors import ExchangeError, GradientError
from gradwire.torch.exchange import wire
from gradwire.torch.exchange.base import BucketExchange
from gradwire.torch.exchange.dense import divide, overflow_error, sum_dtype, take_buffers
from gradwire.torch.transport import Channel, LocalChannel, RankTopology


class DividedBucket(InFlightBucket):
    """One bucket that the ranks of a node divide, with the exchange of this rank's share."""

    share: InFlightBucket | None = None  # None: it could not be started
    memory: torch.Tensor  # the bytes that hold the share
    nbytes: int  # sent to the other ranks of the node before
    seconds: float  # time of that


class HierarchicalExchange:
    """Sums buckets inside a node, exchanges shares between nodes, and gathers the shares.

    The ranks of a node divide every bucket. Each sends the others their shares, and sums its own in
    rank order, in float32: one all-to-all. It exchanges the mean with the ranks of other nodes that
    own the same share, by an ordinary exchange among those. Finally the ranks of a node gather
    their messages and results: one all-gather. So all ranks have the same bits, and know of an
    error on any rank. Both channels connect the node and have no other user: the sending thread
    scatters, the receiving thread gathers. With these device backends they read values on the
    device, possibly on more devices than the exchange of frames between nodes.
    """

    def __init__(
        self,
        between: BucketExchange,
        scatter: LocalChannel,
        gather: Channel,
        place: RankTopology,
        device_backends: Mapping[str, str],
        *,
        check_result: bool,
    ) -> None:
        self._between = between
        self.times = between.times  # which also count what goes inside the node
        self.device_backends = device_backends
        self._scatter: LocalChannel | None = scatter
        self._gather: Channel | None = gather
        self._place = place
        self._check_result = check_result
        self._sums = BufferPool()
        self._gathers = BufferPool()
        self._recent: deque[torch.Tensor] = deque(maxlen=16)  # see base.py

    def close(self) -> None:
        """Release the channels, without closing them, and the memory of sums."""
        self._scatter = self._gather = None
        self._between.close()
        self._sums.clear()
        self._gathers.clear()

    # The sending thread -----------------------------------------------------------------------

    def start(self, task: BucketTask, sequence: int) -> InFlightBucket:
        """Sum this rank's share of a bucket inside the node, and start its exchange."""
        start, flight = time.perf_counter(), DividedBucket(task, sequence)
        with task.bucket.sending():
            share = self._sum(flight)
        flight.seconds = time.perf_counter() - start
        flight.share = self._between.start(share, sequence)
        return flight

    def _sum(self, flight: DividedBucket) -> BucketTask:
        """Return the mean of this rank's share over the node.

        An error of this rank alone becomes that of the task, as in `take_buffers`.
        """
        task, place = flight.task, self._place
        cut, bucket = task.contents.cut, task.bucket
        assert cut is not None
        assert self._scatter is not None
        nbytes = place.shares * cut.room * bucket.itemsize
        flight.nbytes = nbytes // place.shares * (place.shares - 1)
        buffers = take_buffers(task, self._sums, nbytes, nbytes)
        sent, received = (buffer[:nbytes] for buffer in buffers)
        rows = sent.view(bucket.dtype).view(place.shares, cut.room)
        try:
            for row, runs, length in zip(rows, cut.runs, cut.numels, strict=True):
                bucket.pack(runs, row[:length])
        except BaseException as error:  # of any kind: the other ranks of the node wait
            task.error = task.error or error
        self._hold(sent, received)
        wire.wait(self._scatter.all_to_all(received, sent), flight.sequence)
        numel, dtype = cut.numels[place.share], sum_dtype(bucket.dtype)
        try:
            memory = self._sums.take(numel * dtype.itemsize, task.step.number, bucket)
            share = memory[: numel * dtype.itemsize].view(dtype)
            parts = received.view(bucket.dtype).view(place.shares, cut.room)
            torch.add(parts[0, :numel], 0.0, out=share)  # as from zero: no negative zeros
            for part in parts[1:, :numel]:
                share += part
            share = divide(share, place.shares).to(bucket.buffer.device)
        except BaseException as error:  # of any kind: those that have the same share wait
            task.error = task.error or error
            memory = share = torch.empty(0, dtype=dtype, device=bucket.buffer.device)
        for buffer in buffers:  # to this thread, which works in its own order
            self._sums.give(buffer)
        flight.memory = memory
        there = share.device.type in self._between.device_backends
        return replace(task, bucket=backends.backend_for(share).bucket(share, there))

    # The receiving thread ---------------------------------------------------------------------

    def receive(self, flight: InFlightBucket) -> None:
        """Receive this rank's share, and gather the shares of the node.

        Errors are as in `BucketExchange.receive`: of any share, and thus of any rank.
        """
        task, error, values = flight.task, flight.error, None
        if isinstance(flight, DividedBucket) and flight.share is not None:
            self.times.node_bytes += flight.nbytes
            self.times.seconds["node"] += flight.seconds
            try:
                self._between.receive(flight.share)
                values = self._values(task, flight.share.task)
            except BaseException as raised:  # of any kind: the other ranks of the node wait
                error = raised
        with task.bucket.receiving():
            self._gather_shares(flight, error, values)
            if isinstance(flight, DividedBucket):
                # In the stream that took the averages.
                self._sums.give(flight.memory, task.bucket.used(flight.memory))

    def _values(self, task: BucketTask, share: BucketTask) -> torch.Tensor:
        """Return the averages of this rank's share in the bucket's dtype."""
        averages = share.bucket.buffer
        with task.bucket.receiving():
            values = averages.to(task.bucket.dtype)
            rounded = self._check_result and values.dtype != averages.dtype
            if rounded and not bool(values.isfinite().all()):
                averages.copy_(values)
                raise overflow_error(share)
        return values

    def _gather_shares(
        self,
        flight: InFlightBucket,
        error: BaseException | None,
        values: torch.Tensor | None,
    ) -> None:
        """Gather the outcomes of the node's ranks, and the averages of their shares."""
        start = time.perf_counter()
        task, place, cut = flight.task, self._place, flight.task.contents.cut
        assert cut is not None
        assert self._gather is not None
        room = cut.room * task.bucket.itemsize
        nbytes = wire.MESSAGE_NBYTES + room
        sizes = nbytes, place.shares * nbytes
        buffers = take_buffers(task, self._gathers, *sizes)
        mine, gathered = (buffer[:size] for buffer, size in zip(buffers, sizes, strict=True))
        error = _of_all_ranks(error or task.error, _starts(task), place)
        # Layouts are those of shares, which differ inside a node.
        message = np.zeros(wire.MESSAGE_NBYTES, np.uint8)
        wire.write_verdict(message, 0, flight.sequence, error)
        mine[: wire.MESSAGE_NBYTES] = torch.from_numpy(message)
        if values is not None:
            end = wire.MESSAGE_NBYTES + values.nbytes
            mine[wire.MESSAGE_NBYTES : end] = values.view(torch.uint8).to(mine.device)
        self._hold(mine, gathered)
        wire.wait(self._gather.all_gather(gathered, mine), flight.sequence)
        rows = gathered.view(place.shares, nbytes)
        self.times.node_bytes += mine.numel() * (place.shares - 1)
        if error is not None and not isinstance(error, ExchangeError | GradientError):
            raise error
        messages = rows[:, : wire.MESSAGE_NBYTES].cpu().numpy()
        wire.read_verdicts(messages, 0, flight.sequence)
        if room:
            for row, runs, numel in zip(rows, cut.runs, cut.numels, strict=True):
                part = row[wire.MESSAGE_NBYTES :][: numel * task.bucket.itemsize]
                task.bucket.unpack(runs, part.view(task.bucket.dtype))
            task.bucket.store()
        mark = task.bucket.used(*buffers)
        for buffer in buffers:
            self._gathers.give(buffer, mark)
        self.times.add("node", start)

    def _hold(self, *views: torch.Tensor) -> None:
        self._recent.extend(view for view in views if view.is_cpu)


def _starts(task: BucketTask) -> dict[str, int]:
    slots = [piece.parameter for piece in (*task.contents.pieces, *task.contents.dense)]
    return {slot.name: slot.share.start for slot in slots if slot.share is not None}


def _of_all_ranks(
    error: BaseException | None, starts: Mapping[str, int], place: RankTopology
) -> BaseException | None:
    """Translate an error between nodes for all ranks.

    Its rank is a node number, and its position is relative to the share, which starts at
    ``starts``.
    """
    if isinstance(error, GradientError):
        rank = place.rank_of(error.rank, place.share)
        first = error.first + starts.get(str(error.name), 0)
        return GradientError(error.count, first, error.name, place.rank if rank is None else rank)
    if isinstance(error, ExchangeError):
        text = f"between the nodes, where each node counts as one rank: {error}"
        return ExchangeError(text, place.rank_of(error.rank, place.share))
    return error


class Confirmation:
    """Tells the other ranks of the node, once a step, the outcome on this rank.

    The channel is inside the node, and has no other user. This rank's share of each parameter
    begins where ``starts`` says.
    """

    def __init__(self, channel: Channel, place: RankTopology, starts: Mapping[str, int]) -> None:
        self._channel = channel
        self._place = place
        self._starts = starts
        # Kept until the channel is closed: see base.py.
        self._mine = torch.zeros(wire.MESSAGE_NBYTES, dtype=torch.uint8, device="cpu")
        self._every = self._mine.new_empty((channel.size, wire.MESSAGE_NBYTES))

    def __call__(self, error: BaseException | None) -> None:
        """Raise the first error of any rank of the node. A collective."""
        wire.write_verdict(
            self._mine.numpy(), 0, 0, _of_all_ranks(error, self._starts, self._place)
        )
        with wire.explained("another rank of this node did not finish the same backward pass"):
            self._channel.all_gather(self._every.view(-1), self._mine).wait()
        wire.read_verdicts(self._every.numpy(), 0, 0)
