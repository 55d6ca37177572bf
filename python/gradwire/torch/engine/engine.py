"""Exchanges buckets that a program hands over itself: each call is a step of its own."""

import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch

from gradwire.torch import backends
from gradwire.torch.engine.connection import Connection
from gradwire.torch.engine.consensus import ControlChannel, agree, checksum
from gradwire.torch.engine.layout import Layout
from gradwire.torch.engine.pipeline import ExchangePipeline
from gradwire.torch.engine.resources import Resources
from gradwire.torch.engine.step import BucketTask, Step
from gradwire.torch.errors import AgreementError, ExchangeError, fresh
from gradwire.torch.exchange import ExchangeRouter
from gradwire.torch.transport import RankTopology, Transport

__all__ = ["Call", "Engine", "Started"]


@dataclass(frozen=True, slots=True)
class Call:
    """One call of all ranks.

    Attributes
    ----------
    name : str
        What is called, at most 32 ASCII characters.
    number : int
        Of the call, the same on all ranks.
    facts : dict
        What has to be the same on all ranks, by name.
    heard : callable or None
        Called in the sending thread with what all ranks have told; see ``told``.
    told : str
        At most 8 ASCII characters for the other ranks.
    """

    name: str
    number: int
    facts: dict[str, Any]
    heard: Callable[[list[str]], None] | None = None
    told: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Started:
    """A call under way.

    Attributes
    ----------
    step : Step
    futures : list of torch.futures.Future
        Of the averages, one a bucket. They are resolved whether or not the call succeeds.
    """

    step: Step
    futures: "list[torch.futures.Future[torch.Tensor]]"

    @property
    def done(self) -> bool:
        """Whether `averages` would not wait."""
        return all(each.done() for each in self.futures)

    def averages(self) -> list[torch.Tensor]:
        """Wait, and return the buffers with the averages in them.

        Raises
        ------
        GradientError, ExchangeError, AgreementError
            The call failed; every state is as before.
        """
        found = [each.wait() for each in self.futures]
        if self.step.error is not None:
            raise fresh(self.step.error)
        return found


class Engine:
    """A worker with channels of its own, for calls one after another. Making one is a collective.

    It ends its threads and closes its channels when it is collected.

    Parameters
    ----------
    transport : Transport
        Left if the ranks disagree.
    like : sequence of torch.Tensor
        Tensors on the devices of those to come.
    """

    def __init__(self, transport: Transport, like: Sequence[torch.Tensor]) -> None:
        carriers = transport.carriers(like)
        try:
            messages = transport.make()
            agree(messages, "connected", {"carriers of frames": carriers})
            frames = transport.make(carriers)
            transport.connect(frames, carriers, like)
            self.exchange = ExchangeRouter(frames, transport.make(), carriers)
        except BaseException:
            transport.leave()  # a refused call must not leak threads or sockets
            raise
        self.control = ControlChannel(messages)
        self.worker = ExchangePipeline(self.exchange, scaled=False, whole=True)
        place = RankTopology.alone(self.rank, self.size)
        connection = Connection(self.exchange, self.control, transport, place)
        self._resources = Resources(self.worker, connection)
        self._finalizer = weakref.finalize(self, self._resources.abandon)

    @property
    def rank(self) -> int:
        """Place of this process among the ranks."""
        return self.exchange.rank

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self.exchange.world_size

    def start(self, call: Call, buckets: Sequence[tuple[Layout, torch.Tensor]]) -> Started:
        """Exchange buckets, once all ranks are found to call the same. Returns at once.

        Parameters
        ----------
        call : Call
        buckets : sequence of (Layout, torch.Tensor)
            Flat buffers, which receive the averages.

        Raises
        ------
        ExchangeError
            An earlier call broke the exchange, or it is closed.
        """
        if self.worker.broken is not None:
            raise fresh(self.worker.broken)
        if not self._finalizer.alive:
            raise ExchangeError("closed: its channels no longer exist")
        step = Step(call.number, prepare=lambda: _agree(self.control, call, buckets))
        futures = []
        for index, (layout, buffer) in enumerate(buckets):
            carried = buffer.device.type in self.exchange.carriers
            bucket = backends.of(buffer).bucket(buffer, carried)
            futures.append(bucket.future)
            self.worker.submit(
                BucketTask(
                    layout=layout,
                    bucket=bucket,
                    step=step,
                    last=index == len(buckets) - 1,
                    read_scale=_one,
                    enqueued=time.perf_counter(),
                    unused=False,
                )
            )
        return Started(step, futures)

    def leave(self, timeout: timedelta) -> None:
        """Close it once the other ranks do too, or after the timeout. Later calls do nothing."""
        if self._finalizer.detach():
            self._resources.leave(timeout)

    def abandon(self) -> None:
        """Close it without waiting for other ranks. Later calls do nothing."""
        self._finalizer()


def _agree(
    control: ControlChannel, call: Call, buckets: Sequence[tuple[Layout, torch.Tensor]]
) -> None:
    """Meet the other ranks before anything of a call is exchanged.

    Limits follow from sizes that all ranks have seen. Ranks that have seen others, as with a state
    that was loaded, begin anew, with room for any frame.
    """
    parameters = [each for layout, _ in buckets for each in layout.compressed]
    limits = [each.limit.state() for each in parameters]
    mine = f"{checksum(sorted(call.facts.items())):08x}{checksum(limits):08x}{call.told}"
    every = control.compare(call.name, mine)
    if any(each[:8] != mine[:8] for each in every):
        try:
            with control.act("disagreement") as channel:
                agree(channel, f"called {call.name}", call.facts)
        except ValueError as error:
            raise AgreementError(str(error)) from None
    if any(each[8:16] != mine[8:16] for each in every):
        for each in parameters:
            each.limit.reset()
    if call.heard is not None:
        call.heard([each[16:] for each in every])


def _one() -> float:
    """Return the scale of values that are not scaled."""
    return 1.0
