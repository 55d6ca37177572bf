"""What connects the ranks of one attachment: the exchange, and a channel for messages."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch

from gradwire.torch.engine.agreement import agree
from gradwire.torch.engine.control import ControlChannel
from gradwire.torch.engine.options import Options
from gradwire.torch.engine.sharding import Shard
from gradwire.torch.exchange import (
    AutoExchangeRouter,
    Confirmation,
    Exchange,
    HierarchicalExchange,
    build,
)
from gradwire.torch.transport import Channel, Hierarchy, RankTopology, Transport

__all__ = ["NO_FACTS", "Connection", "ShareOf", "connect"]

ShareOf = Callable[[str, torch.Tensor], Shard]
"""Returns what a rank is given of a parameter's gradient, which is summed inside its node."""

NO_FACTS: Mapping[str, object] = MappingProxyType({})


@dataclass(frozen=True, slots=True, eq=False)
class Connection:
    """An exchange and a control channel, and the transport that made their channels.

    Attributes
    ----------
    exchange : Exchange
    control : ControlChannel
    transport : Transport
    place : RankTopology
        Of this rank.
    between : Channel or None
        A channel of the ranks with this rank's share, which is free between steps; None if every
        rank is a node.
    confirm : Confirmation or None
        What ends a step, where the exchange does not tell the node how it fared.
    divides : bool
        The exchange divides every bucket among the ranks of a node.
    """

    exchange: Exchange
    control: ControlChannel
    transport: Transport
    place: RankTopology
    between: Channel | None = None
    confirm: Confirmation | None = None
    divides: bool = False


def connect(
    options: Options,
    named: Mapping[str, torch.Tensor],
    sparse: set[int],
    more: Mapping[str, object],
    share_of: ShareOf | None,
    transport: Transport,
) -> Connection:
    """Connect the ranks, once they agree on the options and the parameters. A collective.

    Parameters
    ----------
    options : Options
    named : mapping of str to torch.Tensor
    sparse : set of int
        The ids of parameters whose gradients are sparse.
    more : mapping of str to object
        What all ranks must agree on besides.
    share_of : callable, optional
        If gradients are summed inside the node already. Otherwise a `Hierarchy` divides them.
    transport : Transport

    Raises
    ------
    ValueError
        The ranks disagree.
    ExchangeError
        They could not be connected.
    """
    carriers = transport.carriers(named.values())
    levels = transport if isinstance(transport, Hierarchy) else None
    messages = transport.make() if levels is None else levels.messages()
    facts = {**options.facts(named, sparse), **more, "carriers of frames": carriers}
    facts["hierarchy"] = None if levels is None else (levels.nodes, levels.shares)
    agree(messages, "attached", facts)
    frames = transport.make(carriers)
    transport.connect(frames, carriers, named.values())
    exchange: Exchange
    if options.owners_of(frames.size) is not None:
        exchange = AutoExchangeRouter(frames, transport.make(), carriers)
    else:
        exchange = build(
            options.assignment.exchange,
            frames,
            transport.make,
            carriers,
            check_result=options.scaled,
            postpones=not options.undoable,
        )
    control = ControlChannel(messages)
    if levels is None:
        place = RankTopology.alone(messages.rank, messages.size)
        return Connection(exchange, control, transport, place)
    inside = levels.local(carriers)
    transport.connect(inside, carriers, named.values())
    place = levels.place(messages, frames, inside)
    if share_of is not None:
        starts = {name: share_of(name, each).start for name, each in named.items()}
        confirm = Confirmation(inside, place, starts)
        return Connection(exchange, control, transport, place, frames, confirm)
    gather = levels.local(carriers)
    transport.connect(gather, carriers, named.values())
    nested = HierarchicalExchange(exchange, inside, gather, place, check_result=options.scaled)
    return Connection(nested, control, transport, place, frames, divides=True)
