"""What ranks have to agree on before they read each other's bytes."""

import zlib
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

__all__ = ["agree", "checksum", "own_group"]


def own_group(over: dist.ProcessGroup, timeout: timedelta | None) -> dist.ProcessGroup:
    """Make a group of the same ranks, so that DDP's own collectives and ours cannot mix."""
    if timeout is None:
        try:
            timeout = over._get_backend(torch.device("cpu")).options._timeout
        except (RuntimeError, AttributeError):
            timeout = None  # not Gloo: torch's default
    group = dist.new_group(
        dist.get_process_group_ranks(over),
        timeout=timeout,
        backend="gloo",
        use_local_synchronization=over is not dist.group.WORLD,
        group_desc="gradwire",
    )
    if not isinstance(group, dist.ProcessGroup):
        raise ValueError("this rank is not in the process group that it attaches a codec to")
    return group


def agree(group: dist.ProcessGroup, act: str, mine: dict[str, Any]) -> None:
    """Compare facts over the ranks: a difference found later would be a hang or garbage.

    Parameters
    ----------
    act : str
        What the ranks did with them, in the past tense.
    mine : dict
        This rank's facts by name.

    Raises
    ------
    ValueError
        On every rank, if two of them differ in a fact.
    """
    every: list[Any] = [None] * group.size()
    dist.all_gather_object(every, mine, group=group)
    for rank, theirs in enumerate(every):
        for what, value in theirs.items():
            if value != every[0][what]:
                raise ValueError(
                    f"rank {rank} and rank 0 {act} with different {what}: "
                    f"{value!r} and {every[0][what]!r}"
                )


def checksum(value: object) -> int:
    """Return a number that is the same in every process for equal values."""
    return zlib.crc32(repr(value).encode())
