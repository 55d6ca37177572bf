"""Checks that the ranks agree before they read each other's bytes."""

import zlib
from collections.abc import Callable
from typing import Any, TypeVar

from gradwire.torch.transport import Channel

__all__ = ["agree", "checksum", "together"]

T = TypeVar("T")


def agree(channel: Channel, act: str, mine: dict[str, Any]) -> None:
    """Compare facts across the ranks: an undetected difference would cause a hang or garbage.

    Parameters
    ----------
    act : str
        What the ranks did, in the past tense, for the message.
    mine : dict
        This rank's facts, by name, for `Channel.all_gather_object`.

    Raises
    ------
    ValueError
        On every rank, if two ranks differ in a fact.
    """
    every = channel.all_gather_object(mine)
    for rank, theirs in enumerate(every):
        for what in {**every[0], **theirs}:
            if theirs.get(what) != every[0].get(what):
                raise ValueError(
                    f"rank {rank} and rank 0 {act} with different {what}: "
                    f"{theirs.get(what)!r} and {every[0].get(what)!r}"
                )


def together(channel: Channel, act: Callable[[], T], verb: str) -> list[T]:
    """Call a function on every rank and return all results. If it raises on one, all raise.

    Parameters
    ----------
    channel : Channel
    act : callable
    verb : str
        What it does with a ``state_dict``, for the message.

    Raises
    ------
    ValueError
        It has raised on some rank.
    """
    raised: BaseException | None = None
    mine: tuple[str | None, Any] = (None, None)
    try:
        mine = (None, act())
    except BaseException as error:  # of any kind: the other ranks wait for the answer
        raised = error
        mine = (f"{type(error).__name__}: {error}", None)
    answers = channel.all_gather_object(mine)
    if raised is not None and not isinstance(raised, Exception):
        raise raised
    for rank, (text, _) in enumerate(answers):
        if text is not None:
            raise ValueError(f"rank {rank} cannot {verb} its state_dict: {text}") from raised
    return [answer for _, answer in answers]


def checksum(value: object) -> int:
    """Return a checksum that is the same in every process for equal values."""
    return zlib.crc32(repr(value).encode())
