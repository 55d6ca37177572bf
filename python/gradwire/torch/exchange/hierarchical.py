"""The exchange in two levels: dense inside a node, by frames between the nodes."""

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from gradwire.torch import backends
from gradwire.torch.engine.metrics import StepTimes
from gradwire.torch.engine.step import BucketTask, BufferPool, InFlightBucket
from gradwire.torch.errors import ExchangeError, GradientError
from gradwire.torch.exchange.dense import accumulator, mean_of, overflow, take, wait
from gradwire.torch.exchange.interface import Exchange
from gradwire.torch.exchange.outcome import NBYTES, Outcome, of_all_ranks, raise_first
from gradwire.torch.transport import Channel, LocalChannel, RankTopology

__all__ = ["HierarchicalExchange"]


@dataclass(slots=True, eq=False)
class _Contents:
    """The share of a bucket: its own flight, and what was sent inside the node before it.

    Attributes
    ----------
    flight : InFlightBucket
    total : torch.Tensor
        The memory of the share.
    nbytes : int
        Bytes sent to the other ranks of the node.
    seconds : float
        Time of that.
    """

    flight: InFlightBucket
    total: torch.Tensor
    nbytes: int
    seconds: float


class HierarchicalExchange:
    """Sums buckets inside a node, exchanges shares of them between nodes, and puts them together.

    The ranks of a node divide every bucket. Each sends the others their shares, and adds up its own
    in rank order, in float32: one all-to-all. It exchanges the mean with the ranks of the other
    nodes that have the same share, by the exchange that was given, as if there were no others. At
    last the ranks of a node send each other how that went, and the result: one all-gather. So all
    ranks have the same bits, and know of an error on any of them.

    Parameters
    ----------
    between : Exchange
        The exchange between the nodes, of shares.
    scatter, gather : LocalChannel, Channel
        Channels inside the node with no other user, one for each thread.
    place : RankTopology
    check_result : bool
        As in `Exchange`.
    """

    def __init__(
        self,
        between: Exchange,
        scatter: LocalChannel,
        gather: Channel,
        place: RankTopology,
        *,
        check_result: bool,
    ) -> None:
        self._between = between
        self._scatter: LocalChannel | None = scatter
        self._gather: Channel | None = gather
        self._place = place
        self._check_result = check_result
        self._sums = BufferPool()
        self._gathers = BufferPool()
        self._recent: deque[torch.Tensor] = deque(maxlen=16)  # see all_gather.py

    @property
    def times(self) -> StepTimes:
        """Running sums of the exchange between the nodes, and of what goes inside the node."""
        return self._between.times

    @times.setter
    def times(self, times: StepTimes) -> None:
        self._between.times = times

    @property
    def postpones(self) -> bool:
        """As the exchange between the nodes."""
        return self._between.postpones

    @property
    def carriers(self) -> Mapping[str, str]:
        """As the exchange between the nodes."""
        return self._between.carriers

    @property
    def world_size(self) -> int:
        """Number of nodes."""
        return self._between.world_size

    def close(self) -> None:
        """Release the channels, without closing them, and the memory of sums."""
        self._scatter = self._gather = None
        self._between.close()
        self._sums.clear()
        self._gathers.clear()

    # The sending thread -----------------------------------------------------------------------

    def start(self, job: BucketTask, sequence: int) -> InFlightBucket:
        """Sum this rank's share of a bucket inside the node, and start its exchange."""
        start = time.perf_counter()
        with job.bucket.sending():
            share, memory, nbytes = self._sum(job, sequence)
        seconds = time.perf_counter() - start
        flight = self._between.start(share, sequence)
        return InFlightBucket(job, sequence, contents=_Contents(flight, memory, nbytes, seconds))

    def _sum(self, job: BucketTask, sequence: int) -> tuple[BucketTask, torch.Tensor, int]:
        """Return the mean of this rank's share over the node, its memory, and the bytes sent.

        What goes wrong on this rank alone is the error of the job that is returned, as in `take`.
        """
        cut, bucket, place = job.layout.cut, job.bucket, self._place
        assert cut is not None
        assert self._scatter is not None
        nbytes = place.shares * cut.room * bucket.itemsize
        taken, job = take(job, [(self._sums, nbytes)] * 2)
        sent, got = (each[:nbytes] for each in taken)
        rows = sent.view(bucket.dtype).view(place.shares, cut.room)
        try:
            for row, runs, length in zip(rows, cut.runs, cut.numels, strict=True):
                bucket.pack(runs, row[:length])
        except BaseException as error:  # of any kind: the other ranks of the node wait
            job = replace(job, error=job.error or error)
        self._keep(sent, got)
        wait(self._scatter.all_to_all(got, sent), sequence)
        numel, dtype = cut.numels[place.share], accumulator(bucket.dtype)
        try:
            memory = self._sums.take(numel * dtype.itemsize, job.step.number, bucket)
            share = memory[: numel * dtype.itemsize].view(dtype)
            every = got.view(bucket.dtype).view(place.shares, cut.room)
            torch.add(every[0, :numel], 0.0, out=share)  # as from zero: no negative zeros
            for part in every[1:, :numel]:
                share += part
            share = mean_of(share, place.shares).to(bucket.buffer.device)
        except BaseException as error:  # of any kind: those that have the same share wait
            job = replace(job, error=job.error or error)
            memory = share = torch.empty(0, dtype=dtype, device=bucket.buffer.device)
        for each in taken:  # to this thread, which works in its own order
            self._sums.give(each)
        found = backends.backend_for(share).bucket(share, share.device.type in self.carriers)
        job = replace(job, bucket=found)
        return job, memory, nbytes // place.shares * (place.shares - 1)

    # The receiving thread ---------------------------------------------------------------------

    def receive(self, flight: InFlightBucket) -> None:
        """Receive this rank's share, and gather the shares of the node.

        Raises
        ------
        GradientError, ExchangeError
            As in `Exchange.receive`: of any share, and thus of any rank.
        """
        error, values = flight.error, None
        contents = flight.contents
        if isinstance(contents, _Contents):
            self.times.node_bytes += contents.nbytes
            self.times.seconds["node"] += contents.seconds
            try:
                self._between.receive(contents.flight)
                if not self.postpones:
                    values = self._values(flight.job, contents.flight.job)
            except BaseException as raised:  # of any kind: the other ranks of the node wait
                error = raised
        with flight.job.bucket.receiving():
            self._share(flight, error, values)
            if not self.postpones:
                self._give_back(flight)

    def complete(self, flight: InFlightBucket) -> None:
        """Complete this rank's share, and gather the shares of the node."""
        if not self.postpones:
            return
        contents = flight.contents
        assert isinstance(contents, _Contents)
        error, values = None, None
        try:
            self._between.complete(contents.flight)
            values = self._values(flight.job, contents.flight.job)
        except BaseException as raised:  # of any kind: the other ranks of the node wait
            error = raised
        with flight.job.bucket.receiving():
            self._share(flight, error, values, whole=True)
            self._give_back(flight)

    def _values(self, job: BucketTask, share: BucketTask) -> torch.Tensor:
        """Return the averages of this rank's share in the bucket's dtype."""
        found = share.bucket.buffer
        with job.bucket.receiving():
            values = found.to(job.bucket.dtype)
            if self._check_result and values.dtype != found.dtype and not _finite(values):
                share.bucket.buffer.copy_(values)
                raise overflow(share)
        return values

    def _share(
        self,
        flight: InFlightBucket,
        error: BaseException | None,
        values: torch.Tensor | None,
        *,
        whole: bool = False,
    ) -> None:
        """Tell the node how this share fared, and learn it of the others, with their averages."""
        start = time.perf_counter()
        job, place, cut = flight.job, self._place, flight.job.layout.cut
        assert cut is not None
        assert self._gather is not None
        room = cut.room * job.bucket.itemsize if whole or not self.postpones else 0
        nbytes = NBYTES + room
        taken, told = take(job, [(self._gathers, n) for n in (nbytes, place.shares * nbytes)])
        error = error or told.error
        mine, gathered = taken[0][:nbytes], taken[1][: place.shares * nbytes]
        if error is not None:
            error = of_all_ranks(error, _starts(job), place)
        Outcome(error).write(mine)
        if values is not None:
            mine[NBYTES : NBYTES + values.nbytes] = values.view(torch.uint8).to(mine.device)
        self._keep(mine, gathered)
        wait(self._gather.all_gather(gathered, mine), flight.sequence)
        every = gathered.view(place.shares, nbytes)
        self.times.node_bytes += mine.numel() * (place.shares - 1)
        if error is not None and not isinstance(error, ExchangeError | GradientError):
            raise error
        raise_first([Outcome.read(each) for each in every])
        if room:
            for row, runs, numel in zip(every, cut.runs, cut.numels, strict=True):
                part = row[NBYTES : NBYTES + numel * job.bucket.itemsize]
                job.bucket.unpack(runs, part.view(job.bucket.dtype))
            job.bucket.store()
        mark = job.bucket.used(*taken)
        for each in taken:
            self._gathers.give(each, mark)
        self.times.add("node", start)

    def _give_back(self, flight: InFlightBucket) -> None:
        """Reuse the memory of a share whose averages were taken, in the stream that took them."""
        contents, flight.contents = flight.contents, None
        if isinstance(contents, _Contents):
            self._sums.give(contents.total, flight.job.bucket.used(contents.total))

    def _keep(self, *views: torch.Tensor) -> None:
        """Keep what a collective may still hold, where it is on the host."""
        self._recent.extend(each for each in views if each.is_cpu)


def _starts(job: BucketTask) -> dict[str, int]:
    """Return where this rank's share of each parameter of a bucket starts."""
    every = [piece.parameter for piece in (*job.layout.pieces, *job.layout.dense)]
    return {each.name: each.share.start for each in every if each.share is not None}


def _finite(values: torch.Tensor) -> bool:
    return bool(torch.isfinite(values).all())
