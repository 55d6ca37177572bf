"""The step time of a method, for any number of ranks and any link."""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Self

from gradwire import _validate
from gradwire.cost.methods import Method
from gradwire.cost.network import Link, Network
from gradwire.cost.simulation import ExchangeCost, Support, participants, simulate
from gradwire.cost.timeline import BucketCost, Timeline, ddp_buckets, overlapped


@dataclasses.dataclass(frozen=True)
class Workload:
    """One training step on one rank, without any exchange.

    Parameters
    ----------
    numel : int
        Entries of the model.
    backward : float
        Seconds of the backward pass.
    other : float
        Seconds that no exchange overlaps with: forward pass, optimizer.
    buckets : sequence of int, optional
        Entries of DDP's buckets, in the order in which they become ready; `ddp_buckets` by
        default.
    ready : sequence of float, optional
        Seconds of the backward pass until each bucket is ready. By default in proportion to the
        entries.
    tensors : int, optional
        Number of tensors of the model. By default one for 200 000 entries.
    shared : bool
        Encodes take processor time from the backward pass, as in training on CPUs. False if it runs
        elsewhere.
    """

    numel: int
    backward: float
    other: float = 0.0
    buckets: Sequence[int] | None = None
    ready: Sequence[float] | None = None
    tensors: int | None = None
    shared: bool = True

    def __post_init__(self) -> None:
        _validate.integer("numel", self.numel, low=1)
        for name in ("backward", "other"):
            _validate.positive(name, getattr(self, name))
        if self.buckets is not None and sum(self.buckets) != self.numel:
            raise ValueError(
                f"buckets must hold the {self.numel} entries of the model, got {sum(self.buckets)}"
            )
        if self.tensors is not None:
            _validate.integer("tensors", self.tensors, low=1)
        if self.ready is not None and (
            len(self.ready) != len(self._numels())
            or list(self.ready) != sorted(self.ready)
            or not 0.0 <= self.ready[0] <= self.ready[-1] <= self.backward * (1 + 1e-9)
        ):
            raise ValueError(
                f"ready must be {len(self._numels())} ascending times up to the {self.backward:g} s"
                f" of the backward pass, got {list(self.ready)}"
            )

    def _numels(self) -> list[int]:
        return ddp_buckets(self.numel) if self.buckets is None else list(self.buckets)

    def parts(self) -> list[tuple[int, float, int]]:
        """Return entries, seconds of backward pass and number of tensors of each bucket."""
        return list(self._parts)

    @functools.cached_property
    def _parts(self) -> list[tuple[int, float, int]]:
        numels = self._numels()
        tensors = self.tensors or max(1, self.numel // 200_000)
        if self.ready is None:
            spans = [self.backward * numel / self.numel for numel in numels]
        else:
            ends = [*self.ready[:-1], self.backward]
            spans = [end - start for start, end in zip([0.0, *ends], ends, strict=False)]
        return [
            (numel, span, max(1, round(tensors * numel / self.numel)))
            for numel, span in zip(numels, spans, strict=True)
        ]

    def with_backward(self, seconds: float) -> Self:
        """Return the same step with a longer or shorter backward pass.

        Parameters
        ----------
        seconds : float
            Duration of the backward pass. Times at which buckets are ready change in proportion.

        Returns
        -------
        Workload
        """
        ready = None
        if self.ready is not None:
            ready = [each * seconds / self.backward for each in self.ready]
        return dataclasses.replace(self, backward=seconds, ready=ready)

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
    distinct : float
        Positions that at least one rank has selected.
    timeline : Timeline
        The times of the backward pass and of the exchanges during it.
    exchanged : tuple of ExchangeCost
        The exchange of each bucket, in the order in which they become ready.
    buckets : tuple of BucketCost
        The times of each bucket.
    """

    method: Method
    network: Network
    step: float
    exposed: float
    sent: float
    sent_inside: float
    memory: float
    distinct: float
    timeline: Timeline
    exchanged: tuple[ExchangeCost, ...]
    buckets: tuple[BucketCost, ...]


def predict(
    workload: Workload, method: Method, network: Network, support: Support | None = None
) -> Prediction:
    """Return the prediction of a step.

    Parameters
    ----------
    workload : Workload
        The step without any exchange.
    method : Method
        How gradients are averaged.
    network, support
        As of `gradwire.cost.simulate`.

    Returns
    -------
    Prediction
        Seconds of the step, bytes that a rank sends and keeps, and the times of each bucket.
    """
    method = method.on(network)
    ranks, parts = participants(method.exchange, network)

    @functools.cache  # most buckets of a large model are alike
    def cost(numel: int, backward: float, tensors: int) -> tuple[ExchangeCost, BucketCost]:
        one = simulate(method.exchange, method.payload(numel, tensors), network, support)
        share = -(-numel // parts)
        encode = method.encode_seconds(share, ranks, tensors)
        decode = method.decode_seconds(share, ranks, tensors)
        alone = one.seconds - one.before
        return one, BucketCost(backward, encode, alone, decode, one.before, one.processor)

    exchanged, buckets = zip(*(cost(*part) for part in workload.parts()), strict=True)
    timeline = overlapped(buckets, shared=workload.shared)
    states = method.state_bytes * workload.numel / parts
    return Prediction(
        method,
        network,
        workload.other + timeline.end,
        timeline.exposed,
        sum(each.sent for each in exchanged),
        sum(each.sent_inside for each in exchanged),
        (states if ranks > 1 else 0.0) + sum(each.buffers for each in exchanged),
        sum(each.distinct for each in exchanged),
        timeline,
        exchanged,
        buckets,
    )


SLOWEST, FASTEST = 1e4, 1e14
"""Bounds of a break-even bandwidth, in bits per second."""
_GRID = [SLOWEST * math.exp(at / 40 * math.log(FASTEST / SLOWEST)) for at in range(41)]
_PASSES = [10.0 ** (at / 3) for at in range(-12, 13)]
"""Backward passes that are compared, in seconds: 0.1 ms to 10 000 s."""


def break_even(
    workload: Workload,
    method: Method,
    network: Network,
    baselines: Sequence[Method],
    support: Support | None = None,
) -> float:
    """Return the bandwidth up to which a method is faster than all baselines.

    Parameters
    ----------
    workload, method, support
        As of `predict`.
    network : Network
        The bandwidth of its link is ignored.
    baselines : sequence of Method
        At least one.

    Returns
    -------
    float
        Bits per second, to 0.1 %: the method is faster on all links between 10 kbit/s and this
        bandwidth. 0 if it is slower at 10 kbit/s; infinite if it is faster up to 100 Tbit/s, the
        fastest link that is tried.

    Raises
    ------
    ValueError
        There is no baseline.
    """
    if not baselines:
        raise ValueError("a break-even link needs a method to compare with")
    own, best = (fastest(workload, each, network, support) for each in ([method], list(baselines)))
    low, high = pays_within(own, best, SLOWEST)
    return high if low == 0.0 else 0.0


Steps = Callable[[float], float]
"""Seconds of a step as a function of the bandwidth of the link, or of the backward pass."""


def fastest(
    workload: Workload, methods: Sequence[Method], network: Network, support: Support | None = None
) -> Steps:
    """Return the step of the fastest method as a function of the bandwidth, with a cache."""

    @functools.cache
    def steps(bandwidth: float) -> float:
        link = Link(bandwidth, network.link.latency, network.link.overhead)
        on = dataclasses.replace(network, link=link)
        return min(predict(workload, each, on, support).step for each in methods)

    return steps


def pays_within(own: Steps, best: Steps, bandwidth: float) -> tuple[float, float]:
    """Return the slowest and the fastest link on which a method is faster.

    They are the ends of the range that this bandwidth is in, or of the nearest one: where latency
    counts, a method may lose on slow links and win on fast ones. An end that no scanned link limits
    is 0 or infinite. (0, 0) if the method is never faster.
    """
    return _range(lambda each: own(each) < best(each), _GRID, bandwidth)


def fastest_by_backward(workload: Workload, methods: Sequence[Method], network: Network) -> Steps:
    """Return the step of the fastest method as a function of the backward pass, with a cache."""

    @functools.cache
    def steps(backward: float) -> float:
        on = workload.with_backward(backward)
        return min(predict(on, each, network).step for each in methods)

    return steps


def backward_within(own: Steps, best: Steps, backward: float) -> tuple[float, float]:
    """Return the shortest and the longest backward pass with which a method is faster.

    In seconds, as `pays_within`. The longer the pass, the more of an uncompressed exchange it
    hides.
    """
    return _range(lambda each: own(each) < best(each), _PASSES, backward)


def _range(
    wins: Callable[[float], bool], grid: Sequence[float], near: float
) -> tuple[float, float]:
    """Return the ends of the range of wins around a value, or of the one nearest to it."""
    grid = sorted({*grid, near})
    here, end, won = grid.index(near), len(grid) - 1, [wins(each) for each in grid]
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
