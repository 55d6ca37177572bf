"""A step as DDP runs it: buckets become ready during the backward pass, one after another."""

import dataclasses
import operator
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gradwire import _validate

__all__ = ["Bucket", "Timeline", "ddp_buckets", "overlapped"]

Times = NDArray[np.float64]

_MIB = 1 << 20


@dataclasses.dataclass(frozen=True)
class Bucket:
    """The work of one bucket, in seconds.

    Attributes
    ----------
    backward : float
        Backward pass from the previous bucket's gradients to this one's.
    encode, exchange, decode : float
        What follows it. The exchange is on the link, the others on a processor.
    before, after : float
        What the thread that encodes waits for before the exchange can begin, and the one that
        decodes after it: collectives that are not on their own.
    processor : float
        What all of these collectives take from a processor.
    """

    backward: float
    encode: float
    exchange: float
    decode: float
    before: float = 0.0
    after: float = 0.0
    processor: float = 0.0


@dataclasses.dataclass(frozen=True)
class Timeline:
    """When things happen, in seconds from the start of the backward pass.

    Attributes
    ----------
    end : float
        The last bucket is decoded.
    backward : float
        The backward pass alone.
    exchanged : tuple of (float, float)
        Start and end of each bucket's exchange.
    """

    end: float
    backward: float
    exchanged: tuple[tuple[float, float], ...]

    @property
    def exposed(self) -> float:
        """Seconds that the exchange adds to the backward pass."""
        return self.end - self.backward


def ddp_buckets(numel: int, *, bucket_mb: float | None = None, itemsize: int = 4) -> list[int]:
    """Return the entries of each of DDP's buckets, in the order in which they become ready.

    As DDP makes them from the second step on: by default, the first is of 1 MiB and the others of
    25 MiB. With ``bucket_mb``, all are of that size, the first too.
    A bucket of DDP ends with the parameter that fills it; here all are exactly full.

    Parameters
    ----------
    numel : int
        Entries of the model, at least 1.
    bucket_mb : float, optional
        ``bucket_cap_mb`` of DDP, in MiB, if that is given to it.
    itemsize : int
        Bytes of an entry of a gradient.
    """
    left = _validate.integer("numel", numel, low=1)
    mib = 25.0 if bucket_mb is None else _validate.positive("bucket_mb", bucket_mb)
    cap = max(1, int(mib * _MIB) // itemsize)
    first = max(1, _MIB // itemsize) if bucket_mb is None else cap
    made: list[int] = []
    while left:
        made.append(min(left, cap if made else first))
        left -= made[-1]
    return made


def overlapped(buckets: Sequence[Bucket], *, shared: bool = False) -> Timeline:
    """Run the buckets of one backward pass.

    A bucket's encode begins when its gradients are ready and the previous encode has ended, its
    exchange when it is encoded and the previous exchange has ended, its decode likewise: two
    threads and a link, each in the order of the buckets. The exchange of the last bucket cannot
    overlap with anything.

    Parameters
    ----------
    buckets : sequence of Bucket
        In the order in which they become ready.
    shared : bool
        Encodes, decodes and the collectives' own work take processor time from the backward pass: a
        rank has one core, or the backward pass uses all of them. Threads that wake up go first, and
        the backward pass waits for them, as schedulers do it for times as short as these. Otherwise
        it has a device, or a core, of its own.
    """
    if not shared or not any(each.encode or each.decode or each.processor for each in buckets):
        return _apart(buckets)
    core = _Core()
    spans: list[tuple[float, float]] = []
    needed = passed = 0.0  # seconds of the backward pass: up to this bucket, and done
    sender = link = receiver = 0.0  # when each is free
    for each in buckets:
        needed += each.backward
        if passed < needed:
            core.work(needed - passed)
            passed = needed
        if core.now < sender:
            passed += core.until(sender)
        core.work(each.encode)
        sender = core.now + each.before
        start = max(sender, link)
        link = start + each.exchange
        spans.append((start, link))
        arrived = max(link, receiver)
        receiver = arrived + each.decode + each.after
        core.interrupt(arrived, each.decode + each.processor)
    backward = sum(each.backward for each in buckets)
    core.work(max(0.0, backward - passed))
    return Timeline(max(core.now, receiver), backward, tuple(spans))


class _Core:
    """A processor with work to do, which is interrupted.

    Attributes
    ----------
    now : float
        Up to when it has worked.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._given: list[tuple[float, float]] = []  # interrupts: when, and for how long
        self._taken = 0

    def interrupt(self, at: float, seconds: float) -> None:
        """Have it do something else for so long; not before the interrupts that it has."""
        self._given.append((at, seconds))

    def work(self, seconds: float) -> None:
        """Do work of so many seconds."""
        end = self.now + seconds
        while self._taken < len(self._given) and self._given[self._taken][0] <= end:
            end += self._given[self._taken][1]
            self._taken += 1
        self.now = end

    def until(self, end: float) -> float:
        """Work until then at least; return the seconds of work."""
        left = end - self.now
        while self._taken < len(self._given) and self._given[self._taken][0] < end:
            left -= self._given[self._taken][1]
            self._taken += 1
        self.now = end - min(left, 0.0)
        return max(left, 0.0)


def _apart(buckets: Sequence[Bucket]) -> Timeline:
    """Run buckets whose work takes nothing from the backward pass: a queue after the other."""

    def seconds(name: str) -> Times:
        return np.fromiter(map(operator.attrgetter(name), buckets), np.float64, len(buckets))

    ready = np.cumsum(seconds("backward"))
    exchange = seconds("exchange")
    sent = _served(ready, seconds("encode") + seconds("before"))
    arrived = _served(sent, exchange)
    done = _served(arrived, seconds("decode") + seconds("after"))
    backward, end = (float(each[-1]) if len(buckets) else 0.0 for each in (ready, done))
    spans = zip((arrived - exchange).tolist(), arrived.tolist(), strict=True)
    return Timeline(max(end, backward), backward, tuple(spans))


def _served(given: Times, work: Times) -> Times:
    """Return when each piece of work ends: each begins when it is given and the last has ended."""
    total = np.cumsum(work)
    # A piece ends when a piece before it was given, and all work from that one on is done.
    return np.asarray(np.maximum.accumulate(given - (total - work)) + total)
