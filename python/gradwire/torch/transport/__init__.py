"""How bytes move between the ranks: by torch.distributed, or by what else connects them.

The reducer asks a `Transport` for channels, and starts the same collectives in each of them on
every rank. It does not know which library moves the bytes.
"""

from gradwire.torch.transport.gloo import Gloo, Store, stores
from gradwire.torch.transport.groups import Group, Groups
from gradwire.torch.transport.hierarchy import Hierarchy, Place
from gradwire.torch.transport.interface import (
    NO_CARRIERS,
    Channel,
    LocalChannel,
    Transport,
    Work,
)
from gradwire.torch.transport.nodes import Levels, levels
from gradwire.torch.transport.secret import Secret

__all__ = [
    "NO_CARRIERS",
    "Channel",
    "Gloo",
    "Group",
    "Groups",
    "Hierarchy",
    "Levels",
    "LocalChannel",
    "Place",
    "Secret",
    "Store",
    "Transport",
    "Work",
    "levels",
    "stores",
]
