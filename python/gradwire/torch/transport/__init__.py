"""Transports move bytes between ranks: over torch.distributed, Horovod, or a store.

The engine gets channels from a `Transport`, and starts the same collectives in each of them on
every rank. It does not depend on the library that moves the bytes. ``topology`` (ranks in nodes),
``store`` and ``horovod`` are imported by those that use them.
"""

from gradwire.torch.transport.channel import (
    NO_DEVICE_BACKENDS,
    Channel,
    LocalChannel,
    RankTopology,
    Transport,
    Work,
)
from gradwire.torch.transport.process_group import ProcessGroupChannel, ProcessGroups

__all__ = [
    "NO_DEVICE_BACKENDS",
    "Channel",
    "LocalChannel",
    "ProcessGroupChannel",
    "ProcessGroups",
    "RankTopology",
    "Transport",
    "Work",
]
