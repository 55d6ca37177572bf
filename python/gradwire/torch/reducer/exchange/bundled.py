"""An exchange of buckets whose parameters are encoded together, by one of any other kind."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from gradwire.torch.reducer.bundling import BundledLayout, Bundler
from gradwire.torch.reducer.exchange.base import Exchange
from gradwire.torch.reducer.jobs import Flight, Job
from gradwire.torch.reducer.report import StepTimes

__all__ = ["Bundled"]


@dataclass(slots=True, eq=False)
class _Contents:
    """The flight of the bucket as it is exchanged."""

    flight: Flight
    layout: BundledLayout


class Bundled:
    """Gives an exchange bundles for pieces.

    If their parameters are next to each other in a bucket, they are encoded where they are. If not,
    as where biases between them are sent dense, a copy of the bucket is exchanged in which they
    are, and the averages are copied back.

    Parameters
    ----------
    inner : Exchange
    bundler : Bundler
    """

    def __init__(self, inner: Exchange, bundler: Bundler) -> None:
        self._inner = inner
        self._bundler = bundler

    @property
    def times(self) -> StepTimes:
        """Those of the exchange."""
        return self._inner.times

    @times.setter
    def times(self, times: StepTimes) -> None:
        self._inner.times = times

    @property
    def postpones(self) -> bool:
        """As the exchange."""
        return self._inner.postpones

    @property
    def carriers(self) -> Mapping[str, str]:
        """As the exchange."""
        return self._inner.carriers

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self._inner.world_size

    def close(self) -> None:
        """Release the channels of the exchange."""
        self._inner.close()

    def start(self, job: Job, sequence: int) -> Flight:
        """Bundle the parameters of a bucket, and start its exchange."""
        if not job.layout.pieces:
            return self._inner.start(job, sequence)
        start = time.perf_counter()
        layout = self._bundler.of(job.layout)
        inner = replace(job, layout=layout)
        if layout.order is not None and job.error is None:
            try:
                with job.bucket.sending():
                    inner.bucket = job.bucket.arranged(layout.order)
            except BaseException as error:  # of any kind, as of missing memory: the others wait
                inner.error = error
        self.times.add("encode", start)
        flight = self._inner.start(inner, sequence)
        return Flight(job, sequence, contents=_Contents(flight, layout))

    def receive(self, flight: Flight) -> None:
        """Receive a bucket, as `Exchange.receive`."""
        contents = flight.contents
        if not isinstance(contents, _Contents):
            self._inner.receive(flight)
            return
        self._inner.receive(contents.flight)
        if not self.postpones:
            self._put_back(flight.job, contents)

    def complete(self, flight: Flight) -> None:
        """Complete a bucket, as `Exchange.complete`."""
        contents = flight.contents
        if not isinstance(contents, _Contents):
            self._inner.complete(flight)
            return
        self._inner.complete(contents.flight)
        if self.postpones:
            self._put_back(flight.job, contents)

    def _put_back(self, job: Job, contents: _Contents) -> None:
        order, arranged = contents.layout.order, contents.flight.job.bucket
        if order is not None:
            start = time.perf_counter()
            with job.bucket.receiving():
                job.bucket.take_back(arranged, order)
                job.bucket.store()
            self.times.add("decode", start)
