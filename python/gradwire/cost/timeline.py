"""The timeline of a step: buckets become ready during the backward pass, one after another."""

import dataclasses
from collections.abc import Sequence

from gradwire import _validate

_MIB = 1 << 20


@dataclasses.dataclass(frozen=True)
class BucketCost:
    """The times of one bucket, in seconds."""

    backward: float  #: Backward pass from the previous bucket's gradients to this one's.
    encode: float  #: On a processor.
    exchange: float  #: On the link.
    decode: float  #: On a processor.
    before: float = 0.0  #: Collectives that the encoding thread waits for before the exchange.
    processor: float = 0.0  #: Processor time of all of these collectives.


@dataclasses.dataclass(frozen=True)
class Timeline:
    """The course of a backward pass, in seconds from its start."""

    end: float  #: When the last bucket is decoded.
    backward: float  #: Duration of the backward pass alone.
    exchanged: tuple[tuple[float, float], ...]  #: Start and end of each bucket's exchange.

    @property
    def exposed(self) -> float:
        """Seconds that the exchange adds to the backward pass."""
        return self.end - self.backward


def ddp_buckets(numel: int, *, bucket_mb: float | None = None, itemsize: int = 4) -> list[int]:
    """Return the entries of each of DDP's buckets, in the order in which they become ready.

    From the second step on, the first bucket has 1 MiB and the others 25 MiB by default; with
    ``bucket_mb``, all have that size. DDP's buckets end with a parameter; here they are exactly
    full. ``numel`` is the entries of the model, at least 1; ``bucket_mb`` is DDP's
    ``bucket_cap_mb``, in MiB; ``itemsize`` the bytes of an entry of a gradient.
    """
    left = _validate.integer("numel", numel, low=1)
    mib = 25.0 if bucket_mb is None else _validate.positive("bucket_mb", bucket_mb)
    cap = max(1, int(mib * _MIB) // itemsize)
    first = max(1, _MIB // itemsize) if bucket_mb is None else cap
    buckets: list[int] = []
    while left:
        buckets.append(min(left, cap if buckets else first))
        left -= buckets[-1]
    return buckets


def overlapped(buckets: Sequence[BucketCost], *, shared: bool = False) -> Timeline:
    """Simulate the buckets of one backward pass.

    A bucket's encode begins when its gradients are ready and the previous encode has ended, its
    exchange when it is encoded and the previous exchange has ended, its decode likewise: two
    threads and a link, each in the order of the buckets, which is that in which they become ready.
    With ``shared``, encodes, decodes and collectives take processor time from the backward pass,
    which waits for them. Otherwise it has a device, or cores, of its own.
    """
    return _on_one_core(buckets) if shared else _apart(buckets)


def _apart(buckets: Sequence[BucketCost]) -> Timeline:
    """Simulate buckets that take no time from the backward pass."""
    spans: list[tuple[float, float]] = []
    backward = sender = link = receiver = 0.0  # when each is free
    for each in buckets:
        backward += each.backward
        sender = max(backward, sender) + each.encode + each.before
        start = max(sender, link)
        link = start + each.exchange
        spans.append((start, link))
        receiver = max(link, receiver) + each.decode
    return Timeline(max(backward, receiver), backward, tuple(spans))


def _on_one_core(buckets: Sequence[BucketCost]) -> Timeline:
    """Simulate buckets whose decodes interrupt encodes, which hold up the backward pass."""
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
        receiver = arrived + each.decode
        core.interrupt(arrived, each.decode + each.processor)
    backward = sum(each.backward for each in buckets)
    core.work(max(0.0, backward - passed))
    return Timeline(max(core.now, receiver), backward, tuple(spans))


class _Core:
    """A processor whose work is interrupted; `now` is its clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self._given: list[tuple[float, float]] = []  # interrupts: when, and for how long
        self._taken = 0

    def interrupt(self, at: float, seconds: float) -> None:
        """Add an interrupt, which must not begin before earlier ones."""
        self._given.append((at, seconds))

    def work(self, seconds: float) -> None:
        """Work for ``seconds``, without interrupts."""
        end = self.now + seconds
        while self._taken < len(self._given) and self._given[self._taken][0] <= end:
            end += self._given[self._taken][1]
            self._taken += 1
        self.now = end

    def until(self, end: float) -> float:
        """Work until at least ``end``; return the seconds of work."""
        left = end - self.now
        while self._taken < len(self._given) and self._given[self._taken][0] < end:
            left -= self._given[self._taken][1]
            self._taken += 1
        self.now = end - min(left, 0.0)
        return max(left, 0.0)
