"""Process groups of some ranks, with names that no other group of these ranks has had."""

import hashlib
import weakref
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

_made: "weakref.WeakKeyDictionary[dist.ProcessGroup, Counter[tuple[int, ...]]]"
_made = weakref.WeakKeyDictionary()
"""How many groups of the same ranks were made, in the lifetime of that of all ranks."""


def new_group(ranks: Sequence[int], *, use_local_synchronization: bool, **options: Any) -> Any:
    """Make a group, as `torch.distributed.new_group` does.

    A group that other ranks know nothing of gets its name from torch by its ranks, and in releases
    such as 2.11 by how many groups there are. So one that follows another which is gone has the
    same name, reads the addresses that the other has left in the store, and never connects. And
    ranks that have different numbers of other groups give it different names.
    """
    named_by = "_hash_ranks_to_str"
    original: Any = getattr(c10d, named_by, None)
    if not use_local_synchronization or original is None:
        return dist.new_group(ranks, use_local_synchronization=use_local_synchronization, **options)
    world = dist.group.WORLD
    assert world is not None
    counts = _made.setdefault(world, Counter())
    counts[tuple(ranks)] += 1
    text = "_".join(map(str, ["gradwire", counts[tuple(ranks)], *ranks]))
    name = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
    setattr(c10d, named_by, lambda ranks: name)
    try:
        return dist.new_group(ranks, use_local_synchronization=True, **options)
    finally:
        setattr(c10d, named_by, original)
