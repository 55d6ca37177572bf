"""Ranks in two levels: the ranks of each node, and channels inside and between nodes."""

import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from gradwire.torch.transport.channel import NO_DEVICE_BACKENDS, Channel, RankTopology
from gradwire.torch.transport.process_group import ProcessGroupChannel, ProcessGroups

Levels: TypeAlias = int | str | DeviceMesh | tuple[dist.ProcessGroup, dist.ProcessGroup]

_EXPECTED = (
    'hierarchy= takes the number of ranks per node, "node" for that of torchrun\'s '
    "LOCAL_WORLD_SIZE, a DeviceMesh with the dimensions (nodes, ranks per node), or two process "
    "groups (inside the node, between the nodes)"
)


def parse_hierarchy(hierarchy: Levels, over: dist.ProcessGroup) -> tuple[list[int], list[int]]:
    """Return the global ranks of this rank's node, and of its partners, one per node.

    ``over`` is the group of all ranks. Raises a TypeError for an invalid hierarchy, and a
    ValueError if it does not divide those ranks into nodes of equal size.
    """
    ranks = dist.get_process_group_ranks(over)
    if isinstance(hierarchy, DeviceMesh):
        return _of_mesh(hierarchy, ranks)
    if isinstance(hierarchy, tuple):
        return _of_groups(hierarchy, ranks)
    if hierarchy == "node":
        size_text = os.environ.get("LOCAL_WORLD_SIZE", "")
        if not size_text.isdecimal():
            raise ValueError(
                'hierarchy="node" reads the number of ranks per node from LOCAL_WORLD_SIZE, which '
                "torchrun sets; it is not set here: pass the number"
            )
        hierarchy = int(size_text)
    if isinstance(hierarchy, bool) or not isinstance(hierarchy, int):
        raise TypeError(f"{_EXPECTED}; got {hierarchy!r}")
    size = hierarchy
    if size < 1 or len(ranks) % size:
        raise ValueError(f"{len(ranks)} ranks cannot be divided into nodes of {size} ranks")
    at = over.rank()
    inside = ranks[at - at % size : at - at % size + size]
    return inside, ranks[at % size :: size]


def _of_mesh(mesh: DeviceMesh, ranks: list[int]) -> tuple[list[int], list[int]]:
    if mesh.ndim != 2:
        raise ValueError(
            f"a DeviceMesh for hierarchy= has the dimensions (nodes, ranks per node); got one of "
            f"shape {tuple(mesh.shape)}"
        )
    known = mesh.mesh.flatten().tolist()
    if sorted(known) != sorted(ranks):
        raise ValueError(f"hierarchy= has ranks {sorted(known)}, but the model has {sorted(ranks)}")
    across, inside = (dist.get_process_group_ranks(mesh.get_group(dim)) for dim in (0, 1))
    return inside, across


def _of_groups(groups: tuple[Any, ...], ranks: list[int]) -> tuple[list[int], list[int]]:
    if len(groups) != 2 or not all(isinstance(group, dist.ProcessGroup) for group in groups):
        raise TypeError(f"{_EXPECTED}; got {groups!r}")
    inside, across = map(dist.get_process_group_ranks, groups)
    rank = dist.get_rank()
    if set(inside) & set(across) != {rank} or not {*inside, *across} <= set(ranks):
        raise ValueError(
            f"hierarchy= has the groups {inside} inside the node and {across} between nodes, which "
            f"must share rank {rank} only, and contain no ranks but {ranks}"
        )
    return inside, across


class Hierarchy:
    """A transport for frames between nodes, among the ranks that own the same share.

    ``inside`` has the global ranks of this node, ``across`` those with this rank's share, one per
    node, and ``everyone`` those of all nodes, if they are not all of ``over``. Timeouts are as in
    `ProcessGroups`.
    """

    def __init__(
        self,
        over: dist.ProcessGroup,
        inside: Sequence[int],
        across: Sequence[int],
        timeout: timedelta | None,
        everyone: Sequence[int] | None = None,
    ) -> None:
        self.nodes, self.shares = len(across), len(inside)
        self._everyone = ProcessGroups(over, timeout, everyone)
        self._inside = ProcessGroups(over, timeout, inside)
        self._across = ProcessGroups(over, timeout, across)

    def device_backends(
        self, tensors: Iterable[torch.Tensor], *, frames: bool = True
    ) -> dict[str, str]:
        """Return the communication backends by device type, as `ProcessGroups`."""
        return self._across.device_backends(tensors, frames=frames)

    def messages(self) -> ProcessGroupChannel:
        """Make a channel over all ranks. A collective."""
        return self._everyone.make()

    def local(self, device_backends: Mapping[str, str] = NO_DEVICE_BACKENDS) -> ProcessGroupChannel:
        """Make a channel inside this node. A collective of its ranks."""
        return self._inside.make(device_backends)

    def make(self, device_backends: Mapping[str, str] = NO_DEVICE_BACKENDS) -> ProcessGroupChannel:
        """Make a channel between the nodes. A collective of the ranks with this share."""
        return self._across.make(device_backends)

    def connect(
        self, channel: Channel, device_backends: Mapping[str, str], tensors: Iterable[torch.Tensor]
    ) -> None:
        """Connect a channel on the devices of these tensors, as `ProcessGroups` does."""
        self._across.connect(channel, device_backends, tensors)

    def place(self, messages: Channel, across: Channel, inside: Channel) -> RankTopology:
        """Return this rank's place. A collective of all ranks.

        Every rank raises a ValueError if nodes have different numbers of ranks, or the groups do
        not fit.
        """
        mine = across.rank, inside.rank, across.size, inside.size
        every = [tuple(answer) for answer in messages.all_gather_object(mine)]
        grid = tuple((node, share) for node, share, _, _ in every)
        sizes = {(nodes, shares) for _, _, nodes, shares in every}
        whole = [(node, share) for node in range(across.size) for share in range(inside.size)]
        if len(sizes) > 1 or sorted(grid) != whole:
            raise ValueError(
                f"{messages.size} ranks must form nodes of equal size, in which each rank has a "
                "partner in every other node; (node, share, nodes, ranks per node) of each rank is "
                f"{every}"
            )
        return RankTopology(messages.rank, across.rank, inside.rank, grid)

    def leave(self) -> None:
        """Destroy all groups. A second call has no effect."""
        for groups in (self._across, self._inside, self._everyone):
            groups.leave()
