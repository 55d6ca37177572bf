"""Bytes, seconds and memory of one exchange."""

import dataclasses
import math

from gradwire import _validate
from gradwire.cost.exchanges import ExchangeModel, Phase, exchange_all, ring_all_gather
from gradwire.cost.methods import model_of
from gradwire.cost.network import Network
from gradwire.cost.payload import Payload
from gradwire.exchange import Exchange


@dataclasses.dataclass(frozen=True)
class Support:
    """Overlap of the ranks' selections: how many positions at least one of them has selected.

    Ranks train the same model on different data, so they tend to select the same entries. An entry
    is selected by a rank with probability p, which is modelled as a Beta(a, b) variable whose mean
    is the ratio d. With the concentration ``s = a + b``, the share of the entries that at least
    one of N ranks has selected is::

        1 - Γ(b + N) Γ(s) / (Γ(b) Γ(s + N)),    b = (1 - d) s

    A large s makes ranks independent; with s near 0 all select the same.

    Parameters
    ----------
    scale, exponent : float
        ``s = scale * d ** exponent``. The defaults are fitted to gradients of up to 64 simulated
        ranks; docs/cost-measured.md has the errors.
    """

    scale: float = 0.82
    exponent: float = -0.63

    def __post_init__(self) -> None:
        if not _validate.positive("scale", self.scale) > 0.0:
            raise ValueError(f"scale must be above 0, got {self.scale!r}")
        _validate.real("exponent", self.exponent)

    def union(self, ratio: float, ranks: int) -> float:
        """Return the share of positions that at least one of the ranks has selected.

        Parameters
        ----------
        ratio : float
            Share that each rank selects, above 0 and at most 1.
        ranks : int
            Number of ranks, at least 1.

        Returns
        -------
        float
            At least ``ratio``, and at most 1 and ``ranks * ratio``.
        """
        ratio = _validate.unit_interval("ratio", ratio)
        ranks = _validate.integer("ranks", ranks, low=1)
        if ratio == 1.0 or ranks == 1:
            return ratio
        s = self.scale * ratio**self.exponent
        b = (1.0 - ratio) * s
        if s > 1e7:  # lgamma would cancel; ranks are independent
            return -math.expm1(ranks * math.log1p(-ratio))
        missed = math.lgamma(b + ranks) - math.lgamma(b) + math.lgamma(s) - math.lgamma(s + ranks)
        return min(1.0, max(ratio, -math.expm1(missed)))


@dataclasses.dataclass(frozen=True)
class ExchangeCost:
    """The cost of an exchange.

    Attributes
    ----------
    seconds : float
        Seconds from the last rank's start to the last rank's end, without encoding and decoding.
    sent : float
        Bytes that a rank sends to other nodes; in a flat network, all that it sends.
    sent_inside : float
        Bytes that a rank sends inside its node.
    buffers : float
        Bytes of a rank's buffers.
    distinct : float
        Positions that at least one participant has selected.
    phases : tuple of Phase
        Collectives between nodes.
    inside : tuple of Phase
        Collectives inside a node.
    before : float
        The part of ``seconds`` for which the encoding thread waits; see `ExchangeModel`.
    processor : float
        Processor time of a rank, a part of ``seconds``.
    """

    seconds: float
    sent: float
    sent_inside: float
    buffers: float
    distinct: float
    phases: tuple[Phase, ...]
    inside: tuple[Phase, ...] = ()
    before: float = 0.0
    processor: float = 0.0


def simulate(
    exchange: Exchange | ExchangeModel,
    payload: Payload,
    network: Network,
    support: Support | None = None,
) -> ExchangeCost:
    """Return the cost of the exchange of a bucket.

    In a network of nodes, ranks sum dense inside a node, and each exchanges its share with its
    partners in the other nodes, as ``attach(hierarchy=)`` does: an all-to-all and an all-gather of
    float32 inside. With plain DDP, nothing is divided: all ranks form one ring that
    leaves and enters each node once.

    Parameters
    ----------
    exchange : gradwire.exchange.Exchange
        How the ranks combine their values; or the ``exchange`` of a `Method`.
    payload : Payload
        Of a rank, for the whole bucket.
    network : Network
        The ranks and their links.
    support : Support, optional
        Overlap of the ranks' selections; the fitted one by default.

    Returns
    -------
    ExchangeCost
        All zero for a single rank.

    Raises
    ------
    TypeError
        An argument has the wrong type.
    ValueError
        An exchange without a model.

    Examples
    --------
    >>> network = gradwire.cost.Network(8, gradwire.cost.Link(1e9, latency=50e-6))
    >>> dense = gradwire.cost.Payload.dense(25_000_000)
    >>> gradwire.cost.simulate(gradwire.exchange.AllReduce(), dense, network).seconds
    1.4007
    """
    model = model_of(exchange)
    for name, value, kind in (
        ("payload", payload, Payload),
        ("network", network, Network),
    ):
        if not isinstance(value, kind):
            raise TypeError(f"{name} must be a gradwire.cost.{kind.__name__}, got {value!r}")
    partners, parts = participants(model, network)
    mine = payload.share(parts)
    inside: tuple[Phase, ...] = ()
    if parts > 1:
        dense = 4.0 * payload.numel / parts
        inside = (
            exchange_all(dense, parts, "all-to-all inside"),
            ring_all_gather(dense, parts, "all-gather inside"),
        )
    phases = model.phases(mine, partners)
    if model.divides:  # all ranks of a node use its link at the same time
        times = [
            network.link.seconds(parts * each.serial, each.rounds, each.messages) for each in phases
        ]
    else:
        times = [_one_ring(each, network) for each in phases]
    here = sum(network.inside.seconds(each.serial, each.rounds, each.messages) for each in inside)
    near = network.inside if partners == 1 else network.link
    processor = sum(near.processor_seconds(each.sent, each.messages) for each in phases) + sum(
        network.inside.processor_seconds(each.sent, each.messages) for each in inside
    )
    union = (support or Support()).union(mine.ratio, partners) if mine.entries else 0.0
    sent = sum(each.sent for each in phases)
    # One rank of a node sends to the next node where all form one ring.
    outside = sent
    if not model.divides:
        outside = sent / network.node_size if network.nodes > 1 else 0.0
    return ExchangeCost(
        sum(times) + here,
        outside,
        sent - outside + sum(each.sent for each in inside),
        model.buffers(mine, partners) if network.ranks > 1 else 0.0,
        union * mine.numel * parts,
        phases,
        inside,
        sum(times[: model.before]),
        processor,
    )


def participants(model: ExchangeModel, network: Network) -> tuple[int, int]:
    """Return how many ranks exchange the same entries, and into how many parts a node cuts them.

    Each rank of a node exchanges one of these with its partners in the other nodes.
    """
    if model.divides:
        return network.nodes, network.node_size
    return network.ranks, 1


def _one_ring(phase: Phase, network: Network) -> float:
    """Return the seconds of a ring of all ranks: one hop in ``node_size`` is between nodes.

    The ring waits for the latencies of both links. All bytes cross the link between nodes; those
    inside are sent at the same time.
    """
    if network.nodes == 1:
        return network.inside.seconds(phase.serial, phase.rounds, phase.messages)
    far = math.ceil(phase.rounds / network.node_size)
    near = phase.rounds - far
    return network.link.seconds(phase.serial, far, far) + network.inside.seconds(0, near, near)
