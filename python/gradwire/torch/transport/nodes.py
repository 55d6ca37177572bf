"""Which ranks form a node: by a number, by the environment, by a mesh, or by two groups."""

import os
from typing import Any, TypeAlias

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

__all__ = ["Levels", "parse_hierarchy"]

Levels: TypeAlias = int | str | DeviceMesh | tuple[dist.ProcessGroup, dist.ProcessGroup]
"""What users call a hierarchy."""

_EXPECTED = (
    'hierarchy= takes the number of ranks per node, "node" for that of torchrun\'s '
    "LOCAL_WORLD_SIZE, a DeviceMesh with the dimensions (nodes, ranks per node), or two process "
    "groups (inside the node, between the nodes)"
)


def parse_hierarchy(hierarchy: Levels, over: dist.ProcessGroup) -> tuple[list[int], list[int]]:
    """Return the global ranks of this rank's node, and of its partners, one in each node.

    Parameters
    ----------
    hierarchy : int, str, DeviceMesh or tuple of ProcessGroup
    over : torch.distributed.ProcessGroup
        The group of all ranks.

    Raises
    ------
    TypeError
        It is none of these.
    ValueError
        It does not divide the ranks of the group into nodes of equal size.
    """
    ranks = dist.get_process_group_ranks(over)
    if isinstance(hierarchy, DeviceMesh):
        return _of_mesh(hierarchy, ranks)
    if isinstance(hierarchy, tuple):
        return _of_groups(hierarchy, ranks)
    if hierarchy == "node":
        given = os.environ.get("LOCAL_WORLD_SIZE", "")
        if not given.isdecimal():
            raise ValueError(
                'hierarchy="node" reads the number of ranks per node from LOCAL_WORLD_SIZE, which '
                "torchrun sets; it is not set here: pass the number"
            )
        hierarchy = int(given)
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
        raise ValueError(f"hierarchy= has ranks {sorted(known)}, the model has {sorted(ranks)}")
    across, inside = (_ranks(mesh.get_group(dim)) for dim in (0, 1))
    return inside, across


def _of_groups(groups: tuple[Any, ...], ranks: list[int]) -> tuple[list[int], list[int]]:
    if len(groups) != 2 or not all(isinstance(each, dist.ProcessGroup) for each in groups):
        raise TypeError(f"{_EXPECTED}; got {groups!r}")
    inside, across = map(_ranks, groups)
    own = dist.get_rank()
    if set(inside) & set(across) != {own} or not {*inside, *across} <= set(ranks):
        raise ValueError(
            f"hierarchy= has the groups {inside} inside the node and {across} between nodes, which "
            f"must have rank {own} in common, no other one, and none but {ranks}"
        )
    return inside, across


def _ranks(group: dist.ProcessGroup) -> list[int]:
    return list(dist.get_process_group_ranks(group))
