"""Transports move bytes between ranks: over torch.distributed, Horovod, or a store.

The engine gets channels from a `Transport`, and starts the same collectives in each of them on
every rank. It does not depend on the library that moves the bytes.
"""

from gradwire.torch.transport.channel import (
    NO_DEVICE_BACKENDS,
    Channel,
    LocalChannel,
    Transport,
    Work,
)
from gradwire.torch.transport.process_group import ProcessGroupChannel, ProcessGroups
from gradwire.torch.transport.store import Gloo, Secret, Store, stores
from gradwire.torch.transport.topology import Hierarchy, Levels, RankTopology, parse_hierarchy

__all__ = [
    "NO_DEVICE_BACKENDS",
    "Channel",
    "Gloo",
    "Hierarchy",
    "Levels",
    "LocalChannel",
    "ProcessGroupChannel",
    "ProcessGroups",
    "RankTopology",
    "Secret",
    "Store",
    "Transport",
    "Work",
    "parse_hierarchy",
    "stores",
]
