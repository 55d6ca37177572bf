"""The transport of Horovod: collectives with names, negotiated by its background thread."""

from gradwire.torch.transport.horovod.channel import HorovodChannel, HorovodTransport
from gradwire.torch.transport.horovod.library import (
    HostsUpdated,
    LostRankError,
    check_initialized,
    library,
)

__all__ = [
    "HorovodChannel",
    "HorovodTransport",
    "HostsUpdated",
    "LostRankError",
    "check_initialized",
    "library",
]
