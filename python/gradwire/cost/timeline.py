"""The timeline of a step: buckets become ready during the backward pass, one after another."""

import dataclasses
from collections.abc import Sequence

_FIRST, _CAP = (1 << 20) // 4, (25 << 20) // 4


@dataclasses.dataclass(frozen=True)
class BucketCost:
    """The times of one bucket, in seconds."""

    backward: float  #: Backward pass from the previous bucket's gradients to this one's.
    encode: float  #: On a processor.
    exchange: float  #: On the link.
    decode: float  #: On a processor.
    before: float = 0.0  #: Collectives that the encoding thread waits for before the exchange.


def ddp_buckets(numel: int) -> list[int]:
    """Return the entries of each of DDP's buckets, in the order in which they become ready.

    From the second step on, the first bucket has 1 MiB of float32 and the others 25 MiB. DDP's
    buckets end with a parameter; here they are exactly full.
    """
    rest = max(numel - _FIRST, 0)
    last = [rest % _CAP] if rest % _CAP else []
    return [min(numel, _FIRST), *[_CAP] * (rest // _CAP), *last]


def overlapped(buckets: Sequence[BucketCost], *, shared: bool = False) -> float:
    """Return the seconds from the start of a backward pass to the end of its last decode.

    A bucket's encode begins when its gradients are ready and the previous encode has ended, its
    exchange when it is encoded and the previous exchange has ended, its decode likewise: two
    threads and a link, each in the order of the buckets, which is that in which they become ready.
    With ``shared``, encodes and decodes take processor time from the backward pass, which waits
    for them. Otherwise it has a device, or cores, of its own.
    """
    return _on_one_core(buckets) if shared else _apart(buckets)


def _apart(buckets: Sequence[BucketCost]) -> float:
    """Simulate buckets that take no time from the backward pass."""
    backward = sender = link = receiver = 0.0  # when each is free
    for each in buckets:
        backward += each.backward
        sender = max(backward, sender) + each.encode + each.before
        link = max(sender, link) + each.exchange
        receiver = max(link, receiver) + each.decode
    return max(backward, receiver)


def _on_one_core(buckets: Sequence[BucketCost]) -> float:
    """Simulate buckets whose decodes interrupt encodes, which hold up the backward pass."""
    core = _Core()
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
        link = max(sender, link) + each.exchange
        arrived = max(link, receiver)
        receiver = arrived + each.decode
        core.interrupt(arrived, each.decode)
    backward = sum(each.backward for each in buckets)
    core.work(max(0.0, backward - passed))
    return max(core.now, receiver)


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
