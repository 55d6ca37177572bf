"""Carries out exchanges of several kinds in one order, each by the object that is made for it."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from gradwire.exchange import AllGather, AllReduce
from gradwire.exchange import Exchange as Part
from gradwire.torch.engine.parameter import ParameterSlot
from gradwire.torch.engine.step import BucketTask, InFlightBucket
from gradwire.torch.exchange.base import ExchangeBase
from gradwire.torch.exchange.build import build
from gradwire.torch.transport import Channel

__all__ = ["AutoExchangeRouter", "ExchangeRouter"]

_ALL_DENSE: Part = AllReduce()
"""For buckets without compressed tensors."""
_MIXED: Part = AllGather()
"""For buckets whose tensors were not together when their exchanges were decided on."""


class ExchangeRouter(ExchangeBase):
    """Takes buckets of any codec; all compressed tensors of one bucket have the same exchange.

    The exchanges share two channels: each thread starts its collectives in one order, whatever they
    are for.

    Parameters
    ----------
    channel : Channel
        A channel with no other user, for collectives that `send` starts.
    reasons : Channel
        Another one, for those after a failure; see `ValueSumExchange`.
    carriers : mapping of str to str
        As in `ExchangeBase`.
    """

    postpones: ClassVar[bool] = True

    def __init__(self, channel: Channel, reasons: Channel, carriers: Mapping[str, str]) -> None:
        super().__init__(channel, carriers, check_result=False)
        self._reasons: Channel | None = reasons
        self._kinds: dict[tuple[Part, bool], ExchangeBase] = {}

    def close(self) -> None:
        """Release both channels, without closing them, and the memory of all exchanges."""
        super().close()
        self._reasons = None
        for each in self._kinds.values():
            each.close()

    def send(self, job: BucketTask, sequence: int) -> InFlightBucket:
        """Have a bucket encoded, and its collectives started."""
        return self._of(job).send(job, sequence)

    def _receive(self, flight: InFlightBucket) -> None:
        self._of(flight.job)._receive(flight)

    def _complete(self, flight: InFlightBucket) -> None:
        kind = self._of(flight.job)
        if kind.postpones:
            kind._complete(flight)

    def _look(self, flight: InFlightBucket) -> NDArray[np.uint8]:
        return self._of(flight.job)._look(flight)

    def _combine(self, flight: InFlightBucket, fronts: NDArray[np.uint8]) -> None:
        self._of(flight.job)._combine(flight, fronts)

    def _of(self, job: BucketTask) -> ExchangeBase:
        part, undoable = _ALL_DENSE, True
        if job.layout.compressed:
            part = self._part(job.layout.compressed)
            undoable = job.layout.compressed[0].codec.memory.undoable
        key = part, undoable
        kind = self._kinds.get(key)
        if kind is None:
            kind = self._kinds[key] = build(
                part,
                self.channel,
                self._another,
                self.carriers,
                check_result=False,
                postpones=not undoable,
            )
        kind.times = self.times  # all are counted together
        return kind

    def _part(self, compressed: Sequence[ParameterSlot]) -> Part:
        """Return the exchange of a bucket with these compressed tensors."""
        part: Part = compressed[0].codec.exchange
        return part

    def _another(self) -> Channel:
        assert self._reasons is not None  # open, as the channel is
        return self._reasons


class AutoExchangeRouter(ExchangeRouter):
    """The same for one model, whose codecs are given another exchange now and then.

    No bucket may be under way then. Parameters of one bucket have the same exchange, but for those
    that DDP has put together since: they are gathered, whatever their codecs say. Their memories
    can go back.
    """

    postpones: ClassVar[bool] = False

    def _part(self, compressed: Sequence[ParameterSlot]) -> Part:
        part = super()._part(compressed)
        alike = all(each.codec.exchange == part for each in compressed)
        return part if alike else _MIXED
