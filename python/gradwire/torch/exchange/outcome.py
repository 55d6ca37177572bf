"""How a share of a bucket fared, as a message of fixed length to the other ranks of a node."""

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from gradwire.torch.errors import ExchangeError, GradientError, kind_of
from gradwire.torch.transport import Channel, RankTopology

__all__ = ["NBYTES", "Confirmation", "Outcome", "of_all_ranks", "raise_first"]

NBYTES = 1024
"""Bytes of a message."""

_HEAD = struct.Struct("<4sBH")  # magic, kind, bytes of the text
_MAGIC = b"GWN1"
_GOOD, _BAD, _FAILED = range(3)


@dataclass(frozen=True, slots=True)
class Outcome:
    """An error, or none, that can be sent.

    Attributes
    ----------
    error : BaseException or None
    """

    error: BaseException | None

    def write(self, out: torch.Tensor) -> None:
        """Write the message to the first bytes of a tensor of bytes."""
        kind, text = _GOOD, ""
        if isinstance(self.error, GradientError):
            error = self.error
            kind = _BAD
            text = json.dumps([error.count, error.first, error.name, error.rank])
            if len(text.encode()) > NBYTES - _HEAD.size:  # for lack of room, without the name
                text = json.dumps([error.count, error.first, None, error.rank])
        elif self.error is not None:
            kind, text = _FAILED, json.dumps([_text(self.error), getattr(self.error, "rank", None)])
        data = text.encode()
        if len(data) > NBYTES - _HEAD.size:
            data = json.dumps([_text(self.error)[:200], None]).encode()
        message = _HEAD.pack(_MAGIC, kind, len(data)) + data
        padded = bytearray(message.ljust(NBYTES, b"\0"))
        out[:NBYTES] = torch.frombuffer(padded, dtype=torch.uint8)

    @classmethod
    def read(cls, message: torch.Tensor) -> "Outcome":
        """Read what `write` wrote."""
        data = bytes(message[:NBYTES].cpu().numpy())
        magic, kind, length = _HEAD.unpack_from(data)
        if magic != _MAGIC or kind > _FAILED:
            return cls(ExchangeError("a message inside the node is not one of gradwire's"))
        if kind == _GOOD:
            return cls(None)
        found = json.loads(data[_HEAD.size : _HEAD.size + length])
        return cls(GradientError(*found) if kind == _BAD else ExchangeError(*found))


def of_all_ranks(
    error: BaseException | None, starts: Mapping[str, int], place: RankTopology
) -> BaseException | None:
    """Return an error between nodes as one that all ranks understand.

    Parameters
    ----------
    error : BaseException or None
        Its rank is a node, and its position is in a share.
    starts : mapping of str to int
        Where this rank's share of each parameter starts.
    place : RankTopology
    """
    if isinstance(error, GradientError):
        rank = place.rank_of(error.rank, place.share)
        first = error.first + starts.get(str(error.name), 0)
        return GradientError(error.count, first, error.name, place.rank if rank is None else rank)
    if isinstance(error, ExchangeError):
        told = f"between the nodes, where each node counts as one rank: {error}"
        return ExchangeError(told, place.rank_of(error.rank, place.share))
    return error


class Confirmation:
    """Tells the other ranks of the node, once a step, how it fared on this one.

    Parameters
    ----------
    channel : Channel
        A channel inside the node with no other user.
    place : RankTopology
    starts : mapping of str to int
        As in `of_all_ranks`.
    """

    def __init__(self, channel: Channel, place: RankTopology, starts: Mapping[str, int]) -> None:
        self._channel = channel
        self._place = place
        self._starts = starts
        # Kept until the channel is closed: see all_gather.py.
        self._mine = torch.zeros(NBYTES, dtype=torch.uint8, device="cpu")
        self._every = self._mine.new_zeros((channel.size, NBYTES))

    def __call__(self, error: BaseException | None) -> None:
        """Raise the first error of any rank of the node. A collective.

        Raises
        ------
        GradientError, ExchangeError
        """
        Outcome(of_all_ranks(error, self._starts, self._place)).write(self._mine)
        try:
            self._channel.all_gather(self._every.view(-1), self._mine).wait()
        except RuntimeError as failure:
            raise kind_of(failure)(
                f"another rank of this node did not end the same backward pass ({failure})",
                getattr(failure, "rank", None),
            ) from failure
        raise_first([Outcome.read(each) for each in self._every])


def raise_first(outcomes: list[Outcome]) -> None:
    """Raise the first error of any share, those of an exchange before those of a gradient."""
    errors = [each.error for each in outcomes if each.error is not None]
    for kind in (ExchangeError, GradientError):
        for error in errors:
            if isinstance(error, kind):
                raise error


def _text(error: BaseException | None) -> str:
    return str(error) if isinstance(error, ExchangeError) else f"{type(error).__name__}: {error}"
