"""A step as DDP runs it: buckets become ready during the backward pass, one after another."""

import dataclasses
import math
from collections.abc import Sequence

from gradwire import _validate

__all__ = ["Bucket", "Timeline", "ddp_buckets", "overlapped"]

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


def ddp_buckets(numel: int, *, bucket_mb: float = 25.0, itemsize: int = 4) -> list[int]:
    """Return the entries of each of DDP's buckets, in the order in which they become ready.

    The first is of 1 MiB, the others of ``bucket_mb``, as DDP makes them from the second step on.
    A bucket of DDP ends with the parameter that fills it; here all are exactly full.

    Parameters
    ----------
    numel : int
        Entries of the model, at least 1.
    bucket_mb : float
        ``bucket_cap_mb`` of DDP, in MiB.
    itemsize : int
        Bytes of an entry of a gradient.
    """
    left = _validate.integer("numel", numel, low=1)
    cap = max(1, int(_validate.positive("bucket_mb", bucket_mb) * _MIB) // itemsize)
    first = min(cap, _MIB // itemsize)
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
    backward = _Worker([each.backward for each in buckets], len(buckets))
    encode = _Worker([each.encode for each in buckets])
    decode = _Worker([each.decode for each in buckets])
    spans: list[tuple[float, float]] = []
    now = 0.0
    while decode.done < len(buckets):
        running = [each for each in (backward, encode, decode) if each.done < each.given]
        rate = 1.0 / len(running) if shared and running else 1.0
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
