"""What ranks have to agree on before they read each other's bytes."""

import zlib
from typing import Any

import torch.distributed as dist

__all__ = ["agree", "checksum"]


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
