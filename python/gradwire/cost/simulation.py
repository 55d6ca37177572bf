"""Bytes, seconds and memory of one exchange."""

import dataclasses
import math

from gradwire.cost.exchanges import Exchange, Phase, exchange_all, ring_all_gather
from gradwire.cost.network import Network
from gradwire.cost.payload import Payload
from gradwire.cost.support import Support

__all__ = ["Exchanged", "simulate"]


@dataclasses.dataclass(frozen=True)
class Exchanged:
    """What an exchange costs.

    Attributes
    ----------
    seconds : float
        From the last rank's start to the last rank's end, without encoding and decoding.
    sent : float
        Bytes that a rank sends to other nodes; in a flat network, all that it sends.
    sent_inside : float
        Bytes that a rank sends inside its node.
    buffers : float
        Bytes that a rank holds for it.
    distinct : float
        Positions that any participant has selected.
    phases : tuple of Phase
        Collectives between nodes.
    inside : tuple of Phase
        Collectives inside a node.
    before, after : float
        The part of ``seconds`` in which the thread that encodes waits for it, and the one that
        decodes; see `gradwire.cost.Exchange`.
    processor : float
        Seconds of a rank's processor, while these go by.
    """

    seconds: float
    sent: float
    sent_inside: float
    buffers: float
    distinct: float
    phases: tuple[Phase, ...]
    inside: tuple[Phase, ...] = ()
    before: float = 0.0
    after: float = 0.0
    processor: float = 0.0


def simulate(
    exchange: Exchange, payload: Payload, network: Network, support: Support | None = None
) -> Exchanged:
    """Return what the exchange of a bucket costs.

    In a network of nodes, ranks sum dense inside a node, and each exchanges its share with its
    partners in the other nodes, as ``attach(hierarchy=)`` does: an all-to-all and an all-gather of
    float32 inside. With plain DDP and low rank, nothing is divided: all ranks form one ring that
    leaves and enters each node once.

    Parameters
    ----------
    exchange : Exchange
        How the ranks combine what they have.
    payload : Payload
        What a rank sends of the whole bucket.
    network : Network
        The ranks and their links.
    support : Support, optional
        Overlap of the ranks' selections; the fitted one by default.

    Returns
    -------
    Exchanged
        All zero for a single rank.

    Raises
    ------
    TypeError
        An argument of another type.

    Examples
    --------
    >>> network = gradwire.cost.Network(8, gradwire.cost.Link(1e9, latency=50e-6))
    >>> dense = gradwire.cost.Payload.dense(25_000_000)
    >>> gradwire.cost.simulate(gradwire.cost.RingAllReduce(), dense, network).seconds
    1.4007
    """
    for name, value, kind in (
        ("exchange", exchange, Exchange),
        ("payload", payload, Payload),
        ("network", network, Network),
    ):
        if not isinstance(value, kind):
            raise TypeError(f"{name} must be a gradwire.cost.{kind.__name__}, got {value!r}")
    divided = exchange.divides and network.node_size > 1
    partners = network.nodes if exchange.divides else network.ranks
    mine = payload.share(network.node_size) if divided else payload
    # All ranks of a node use its link at the same time, unless they form one ring.
    together = network.node_size if divided else 1
    inside = _inside(payload, network) if divided else ()
    phases = exchange.phases(mine, partners)
    if exchange.divides:
        times = [
            network.link.seconds(together * each.serial, each.rounds, each.messages)
            for each in phases
        ]
    else:
        times = [_one_ring(each, network) for each in phases]
    here = sum(network.inside.seconds(each.serial, each.rounds, each.messages) for each in inside)
    near = network.inside if partners == 1 else network.link
    processor = sum(near.processor_seconds(each.sent, each.messages) for each in phases) + sum(
        network.inside.processor_seconds(each.sent, each.messages) for each in inside
    )
    union = (support or Support()).union(mine.density, partners) if mine.entries else 0.0
    sent = sum(each.sent for each in phases)
    # One rank of a node sends to the next node where all form one ring.
    outside = sent
    if not exchange.divides:
        outside = sent / network.node_size if network.nodes > 1 else 0.0
    return Exchanged(
        sum(times) + here,
        outside,
        sent - outside + sum(each.sent for each in inside),
        exchange.buffers(mine, partners) if network.ranks > 1 else 0.0,
        union * mine.numel * together,
        phases,
        inside,
        sum(times[: exchange.before]),
        sum(times[len(times) - exchange.after :]),
        processor,
    )


def _one_ring(phase: Phase, network: Network) -> float:
    """Return the seconds of a ring of all ranks: one hop in ``node_size`` is between nodes.

    What is sent round the ring waits for latencies of both links, but all of its bytes cross the
    link between nodes, while those inside are on their way at the same time.
    """
    if network.nodes == 1:
        return network.inside.seconds(phase.serial, phase.rounds, phase.messages)
    far = math.ceil(phase.rounds / network.node_size)
    near = phase.rounds - far
    return network.link.seconds(phase.serial, far, far) + network.inside.seconds(0, near, near)


def _inside(payload: Payload, network: Network) -> tuple[Phase, ...]:
    share = 4.0 * payload.numel / network.node_size
    return (
        exchange_all(share, network.node_size, "all-to-all inside"),
        ring_all_gather(share, network.node_size, "all-gather inside"),
    )
