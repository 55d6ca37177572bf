"""Checks that the ranks agree before they read each other's bytes."""

import zlib
from typing import Any

from gradwire.torch.transport import Channel

__all__ = ["agree", "checksum"]


def agree(channel: Channel, act: str, mine: dict[str, Any]) -> None:
    """Compare facts across the ranks: an undetected difference would cause a hang or garbage.

    Parameters
    ----------
    act : str
        What the ranks did, in the past tense, for the message.
    mine : dict
        This rank's facts, by name.

    Raises
    ------
    ValueError
        On every rank, if two ranks differ in a fact.
    """
    every = channel.all_gather_object(mine)
    for rank, theirs in enumerate(every):
        for what, value in theirs.items():
            if value != every[0][what]:
                raise ValueError(
                    f"rank {rank} and rank 0 {act} with different {what}: "
                    f"{value!r} and {every[0][what]!r}"
                )


def checksum(value: object) -> int:
    """Return a checksum that is the same in every process for equal values."""
    return zlib.crc32(repr(value).encode())
