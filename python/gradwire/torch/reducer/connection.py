"""What connects the ranks of one attachment: the exchange, and a channel for messages."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch

from gradwire.torch.reducer.agreement import agree
from gradwire.torch.reducer.control import Control
from gradwire.torch.reducer.exchange import Exchange, build
from gradwire.torch.reducer.options import Options
from gradwire.torch.transport import Transport

__all__ = ["NO_FACTS", "Connection", "connect"]

NO_FACTS: Mapping[str, object] = MappingProxyType({})


@dataclass(frozen=True, slots=True, eq=False)
class Connection:
    """An exchange and a control channel, and the transport that made their channels."""

    exchange: Exchange
    control: Control
    transport: Transport


def connect(
    options: Options,
    named: Mapping[str, torch.Tensor],
    sparse: set[int],
    more: Mapping[str, object],
    transport: Transport,
) -> Connection:
    """Connect the ranks, once they agree on the options and the parameters. A collective.

    Raises
    ------
    ValueError
        The ranks disagree.
    ExchangeError
        They could not be connected.
    """
    carriers = transport.carriers(named.values())
    messages = transport.make()
    facts = {**options.facts(named, sparse), **more, "carriers of frames": carriers}
    agree(messages, "attached", facts)
    frames = transport.make(carriers)
    transport.connect(frames, carriers, named.values())
    exchange = build(
        options.assignment.exchange,
        frames,
        transport.make,
        carriers,
        check_result=options.scaled,
        postpones=not options.undoable,
    )
    return Connection(exchange, Control(messages), transport)
