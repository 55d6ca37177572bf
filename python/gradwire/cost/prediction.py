"""The step time of a method, for any number of ranks and any link."""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence

from gradwire._validate import Checked, Count, NotNegative
from gradwire.cost.exchanges import ExchangeCost, participants, simulate
from gradwire.cost.methods import Method
from gradwire.cost.network import Network

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
    for bucket in buckets:
        backward += bucket.backward
        sender = max(backward, sender) + bucket.encode + bucket.before
        link = max(sender, link) + bucket.exchange
        receiver = max(link, receiver) + bucket.decode
    return max(backward, receiver)


def _on_one_core(buckets: Sequence[BucketCost]) -> float:
    """Simulate buckets whose decodes interrupt encodes, which hold up the backward pass."""
    core = _Core()
    needed = passed = 0.0  # seconds of the backward pass: up to this bucket, and done
    sender = link = receiver = 0.0  # when each is free
    for bucket in buckets:
        needed += bucket.backward
        if passed < needed:
            core.work(needed - passed)
            passed = needed
        if core.now < sender:
            passed += core.until(sender)
        core.work(bucket.encode)
        sender = core.now + bucket.before
        link = max(sender, link) + bucket.exchange
        arrived = max(link, receiver)
        receiver = arrived + bucket.decode
        core.interrupt(arrived, bucket.decode)
    backward = sum(bucket.backward for bucket in buckets)
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


@dataclasses.dataclass(frozen=True)
class Workload(Checked):
    """One training step on one rank, without any exchange.

    Its buckets are DDP's, 1 MiB and then 25 MiB each, and become ready in proportion to their
    entries.

    Parameters
    ----------
    numel : int
        Entries of the model.
    backward : float
        Seconds of the backward pass.
    other : float
        Seconds that no exchange overlaps with: forward pass, optimizer.
    tensors : int, optional
        Number of tensors of the model. By default one for 200 000 entries.
    shared : bool
        Encodes take processor time from the backward pass, as in training on CPUs. False if it runs
        elsewhere.
    """

    numel: Count
    backward: NotNegative
    other: NotNegative = 0.0
    tensors: Count | None = None
    shared: bool = True

    @functools.cached_property
    def parts(self) -> list[tuple[int, float, int]]:
        """Entries, seconds of backward pass and number of tensors of each bucket."""
        tensors = self.tensors or max(1, self.numel // 200_000)
        return [
            (
                numel,
                self.backward * numel / self.numel,
                max(1, round(tensors * numel / self.numel)),
            )
            for numel in ddp_buckets(self.numel)
        ]

    @property
    def compute(self) -> float:
        """Seconds of a step without any exchange."""
        return self.backward + self.other


@dataclasses.dataclass(frozen=True)
class Prediction:
    """A step of one method.

    Attributes
    ----------
    method : Method
        The method, with the exchange that it has on this network.
    network : Network
        The ranks and their links.
    step : float
        Seconds of a step.
    exposed : float
        Seconds that the exchange adds to a step.
    sent : float
        Bytes that a rank sends to other nodes.
    sent_inside : float
        Bytes that a rank sends inside its own node.
    memory : float
        Bytes that a rank keeps at most: states, and buffers of all exchanges.
    buckets : tuple of BucketCost
        The times of each bucket, in the order in which they become ready.
    """

    method: Method
    network: Network
    step: float
    exposed: float
    sent: float
    sent_inside: float
    memory: float
    buckets: tuple[BucketCost, ...]


def predict(workload: Workload, method: Method, network: Network) -> Prediction:
    """Return the prediction of a step.

    Parameters
    ----------
    workload : Workload
        The step without any exchange.
    method : Method
        How gradients are averaged.
    network : Network
        The ranks and their links.

    Returns
    -------
    Prediction
        Seconds of the step, bytes that a rank sends and keeps, and the times of each bucket.
    """
    method = method.on(network)
    ranks, parts = participants(method.exchange, network)

    @functools.cache  # most buckets of a large model are alike
    def cost(numel: int, backward: float, tensors: int) -> tuple[ExchangeCost, BucketCost]:
        one = simulate(method.exchange, method.payload(numel, tensors), network)
        share = -(-numel // parts)
        encode = method.encode_seconds(share, ranks, tensors)
        decode = method.decode_seconds(share, ranks, tensors)
        return one, BucketCost(backward, encode, one.seconds - one.before, decode, one.before)

    exchanged, buckets = zip(*(cost(*part) for part in workload.parts), strict=True)
    end = overlapped(buckets, shared=workload.shared)
    states = method.state_bytes * workload.numel / parts
    return Prediction(
        method,
        network,
        workload.other + end,
        end - workload.backward,
        sum(exchange.sent for exchange in exchanged),
        sum(exchange.sent_inside for exchange in exchanged),
        (states if ranks > 1 else 0.0) + sum(exchange.buffers for exchange in exchanged),
        buckets,
    )


Steps = Callable[[float], float]
"""Seconds of a step as a function of the bandwidth of the link."""

_GRID = [10.0 ** (4 + at / 4) for at in range(41)]
"""Bandwidths that are compared: 10 kbit/s to 100 Tbit/s."""


def by_link(workload: Workload, methods: Sequence[Method], network: Network) -> Steps:
    """Return the step of the fastest method as a function of the bandwidth, with a cache."""

    @functools.cache
    def steps(bandwidth: float) -> float:
        link = dataclasses.replace(network.link, bandwidth=bandwidth)
        on = dataclasses.replace(network, link=link)
        return min(predict(workload, method, on).step for method in methods)

    return steps


def pays_within(mine: Steps, best: Steps, bandwidth: float) -> tuple[float, float]:
    """Return the slowest and the fastest link on which a method is faster.

    They are the ends of the range that this bandwidth is in, or of the nearest one: where latency
    counts, a method may lose on slow links and win on fast ones. An end that no scanned link limits
    is 0 or infinite. (0, 0) if the method is never faster.
    """

    def wins(each: float) -> bool:
        return mine(each) < best(each)

    grid = sorted({*_GRID, bandwidth})
    here, end, won = grid.index(bandwidth), len(grid) - 1, [wins(bandwidth) for bandwidth in grid]
    if not any(won):
        return 0.0, 0.0
    first = last = min((at for at in range(len(grid)) if won[at]), key=lambda at: abs(at - here))
    while first > 0 and won[first - 1]:
        first -= 1
    while last < end and won[last + 1]:
        last += 1
    low = _edge(wins, grid[first], grid[first - 1]) if first else 0.0
    return low, _edge(wins, grid[last], grid[last + 1]) if last < end else math.inf


def _edge(wins: Callable[[float], bool], won: float, lost: float) -> float:
    """Return the last value that wins on the way to one that does not, to 0.1 %."""
    while max(won, lost) > 1.001 * min(won, lost):
        middle = won * math.sqrt(lost / won)
        won, lost = (middle, lost) if wins(middle) else (won, middle)
    return won
