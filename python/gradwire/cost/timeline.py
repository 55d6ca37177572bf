"""A step as DDP runs it: buckets become ready during the backward pass, one after another."""

import dataclasses
import math
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
    """

    backward: float
    encode: float
    exchange: float
    decode: float


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
        Encodes and decodes take processor time from the backward pass, in equal shares: a rank
        has one core, or the backward pass uses all of them. Otherwise it has a device, or a core,
        of its own.
    """
    if not shared or not any(each.encode or each.decode for each in buckets):
        return _apart(buckets)
    backward = _Worker([each.backward for each in buckets], len(buckets))
    encode = _Worker([each.encode for each in buckets])
    decode = _Worker([each.decode for each in buckets])
    spans: list[tuple[float, float]] = []
    now = 0.0
    while decode.done < len(buckets):
        running = [each for each in (backward, encode, decode) if each.done < each.given]
        rate = 1.0 / len(running) if running else 1.0
        # The next event: a piece of work ends, or a bucket arrives.
        elapsed = min((each.left[each.done] / rate for each in running), default=math.inf)
        if decode.given < len(spans) and spans[decode.given][1] - now <= elapsed:
            elapsed = max(0.0, spans[decode.given][1] - now)
            decode.given += 1
        now += elapsed
        for each in running:
            each.work(elapsed * rate)
        encode.given = backward.done
        while len(spans) < encode.done:
            start = max(now, spans[-1][1] if spans else 0.0)
            spans.append((start, start + buckets[len(spans)].exchange))
    return Timeline(now, sum(each.backward for each in buckets), tuple(spans))


def _apart(buckets: Sequence[Bucket]) -> Timeline:
    """Run buckets whose work takes nothing from the backward pass: a queue after the other."""

    def seconds(name: str) -> Times:
        return np.fromiter(map(operator.attrgetter(name), buckets), np.float64, len(buckets))

    ready = np.cumsum(seconds("backward"))
    exchange = seconds("exchange")
    arrived = _served(_served(ready, seconds("encode")), exchange)
    done = _served(arrived, seconds("decode"))
    backward, end = (float(each[-1]) if len(buckets) else 0.0 for each in (ready, done))
    spans = zip((arrived - exchange).tolist(), arrived.tolist(), strict=True)
    return Timeline(max(end, backward), backward, tuple(spans))


def _served(given: Times, work: Times) -> Times:
    """Return when each piece of work ends: each begins when it is given and the last has ended."""
    total = np.cumsum(work)
    # A piece ends when a piece before it was given, and all work from that one on is done.
    return np.asarray(np.maximum.accumulate(given - (total - work)) + total)


class _Worker:
    """Takes pieces of work in order.

    Attributes
    ----------
    left : list of float
        Seconds of each piece that are left.
    given, done : int
        Number of pieces that may be begun, and that are done.
    """

    def __init__(self, left: list[float], given: int = 0) -> None:
        self.left, self.given, self.done = left, given, 0

    def work(self, seconds: float) -> None:
        """Work on the next piece."""
        self.left[self.done] -= seconds
        if self.left[self.done] <= 1e-12:
            self.done += 1
