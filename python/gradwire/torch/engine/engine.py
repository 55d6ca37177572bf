"""The threads and channels that exchange buckets between ranks, and their shutdown."""

import contextlib
import functools
import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta

from gradwire.exchange import Exchange as Part
from gradwire.torch.engine.consensus import ControlChannel
from gradwire.torch.engine.pipeline import ExchangePipeline
from gradwire.torch.errors import ExchangeError
from gradwire.torch.exchange.base import BucketExchange
from gradwire.torch.transport import Channel, RankTopology, Transport

_PATIENCE = 1.0  # seconds that each thread has to end before the caller goes on


class Engine:
    """A pipeline and its channels. Both end when the engine is left or garbage-collected.

    Nothing that these threads refer to may refer to the engine: it would never be collected.

    ``peers`` is the channel of the ranks that own the same share as this rank, unused between
    steps; None if every rank is a node. ``divides`` tells that the ranks of a node divide every
    bucket. ``parts`` are the codecs' exchanges among these ranks. ``carried_by`` names the library
    that transfers frames.
    """

    def __init__(
        self,
        exchange: BucketExchange,
        control: ControlChannel,
        place: RankTopology,
        transport: Transport,
        *,
        scaled: bool = False,
        confirm: Callable[[BaseException | None], None] | None = None,
        peers: Channel | None = None,
        divides: bool = False,
        parts: Sequence[Part] = (),
        carried_by: str = "",
    ) -> None:
        self.exchange = exchange
        self.control = control
        self.place = place
        self.rank, self.size = place.rank, place.size
        self.peers = peers
        self.divides = divides
        self.parts = parts
        self.carried_by = carried_by
        self.pipeline = ExchangePipeline(exchange, scaled=scaled, confirm=confirm)
        self._release = functools.partial(_release, self.pipeline, exchange, control, transport)
        self._finalizer = weakref.finalize(self, self._release)

    @property
    def alive(self) -> bool:
        """Whether `leave` has not been called."""
        return self._finalizer.alive

    def leave(self, timeout: timedelta, last: Callable[[Channel], None] | None = None) -> None:
        """Release everything once the other ranks do too, or after the timeout.

        If they do, they first call ``last`` together. Later calls do nothing.
        """
        if self._finalizer.detach() is None:
            return
        deadline = time.monotonic() + timeout.total_seconds()
        try:
            done = self.pipeline.flush(timeout.total_seconds())
            if not done and self.pipeline.broken is None:  # start no more collectives
                self.pipeline.broken = ExchangeError("detached while buckets were being exchanged")
            if self.pipeline.broken is None:
                left = max(deadline - time.monotonic(), 0.1)
                self.control.leave("detach()", timedelta(seconds=left), last)
        finally:
            self._release()

    def abandon(self) -> None:
        """Release everything without waiting for other ranks. Later calls do nothing.

        If a collective is in progress, channels are closed after its timeout, on another thread.
        """
        self._finalizer()


@contextlib.contextmanager
def left_on_error(transport: Transport) -> Iterator[None]:
    """Leave a transport if the block fails: a refused call must not leak threads or sockets."""
    try:
        yield
    except BaseException:
        transport.leave()
        raise


def _release(
    pipeline: ExchangePipeline,
    exchange: BucketExchange,
    control: ControlChannel,
    transport: Transport,
    patience: float | None = _PATIENCE,
) -> None:
    if pipeline.stop(patience):
        exchange.close()
        if pipeline.broken is not None:
            gc.collect()  # cycles of errors hold collectives, and so connections, open
        transport.leave()
    elif patience is not None and not pipeline.forked:
        args = (pipeline, exchange, control, transport, None)
        threading.Thread(target=_release, args=args, name="gradwire-leave", daemon=True).start()
    del control  # kept until here: its channel uses its tensors until it is closed
