"""Bytes, seconds and memory of one exchange."""

import dataclasses
import math

from gradwire.cost.exchanges import ExchangeModel, Phase, exchange_all, ring_all_gather
from gradwire.cost.methods import model_of
from gradwire.cost.network import Network
from gradwire.cost.payload import Payload
from gradwire.exchange import Exchange


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
    before : float
        The part of ``seconds`` for which the encoding thread waits; see `ExchangeModel`.
    """

    seconds: float
    sent: float
    sent_inside: float
    buffers: float
    before: float = 0.0


def simulate(
    exchange: Exchange | ExchangeModel, payload: Payload, network: Network
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

    Returns
    -------
    ExchangeCost
        All zero for a single rank.

    Raises
    ------
    TypeError
        The exchange is none.
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
    partners, parts = participants(model, network)
    mine = payload.share(parts)
    inside: tuple[Phase, ...] = ()
    if parts > 1:
        dense = 4.0 * payload.numel / parts
        inside = exchange_all(dense, parts), ring_all_gather(dense, parts)
    phases = model.phases(mine, partners)
    if model.divides:  # all ranks of a node use its link at the same time
        times = [
            network.link.seconds(parts * each.serial, each.rounds, each.messages) for each in phases
        ]
    else:
        times = [_one_ring(each, network) for each in phases]
    here = sum(network.inside.seconds(each.serial, each.rounds, each.messages) for each in inside)
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
        sum(times[: model.before]),
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
