"""Sends the reason why a rank failed to the other ranks, in messages of fixed length."""

import json
import struct

import torch

from gradwire.torch.engine.layout import Layout
from gradwire.torch.errors import ExchangeError, GradientError, kind_of
from gradwire.torch.exchange.dense import raise_bad, reason_of
from gradwire.torch.transport import Channel

__all__ = ["share_reasons"]

_NBYTES = 1024
_HEAD = struct.Struct("<B3xI")  # kind, bytes of text
_NONE, _BAD, _FAILED = range(3)


def share_reasons(
    channel: Channel, layout: Layout, error: BaseException | None, did: str = "encode"
) -> None:
    """Send this rank's reason to the other ranks, and raise that of the first failing rank.

    Every rank calls this for the same buckets in the same order, and no other thread uses the
    channel.

    Parameters
    ----------
    channel : Channel
    layout : Layout
        Of the bucket.
    error : BaseException or None
        Why this rank failed, if it did.
    did : str
        What all ranks were doing, for the message.
    """
    mine = _pack(layout, error)
    every = mine.new_empty(channel.size * mine.numel())
    try:
        channel.all_gather(every, mine).wait()
    except RuntimeError as failure:
        text = f"a rank failed without reporting why ({failure})"
        raise kind_of(failure)(text, getattr(failure, "rank", None)) from failure
    _raise_first(layout, every.view(channel.size, -1), did)


def _pack(layout: Layout, error: BaseException | None) -> torch.Tensor:
    """Return a message with this rank's reason, or with none."""
    mine = bytearray(_NBYTES)
    if isinstance(error, GradientError):
        kind, text = _BAD, json.dumps(reason_of(error, layout))
    elif error is not None:
        kind, text = _FAILED, f"{type(error).__name__}: {error}"
    else:
        kind, text = _NONE, ""
    data = text.encode()[: _NBYTES - _HEAD.size]
    _HEAD.pack_into(mine, 0, kind, len(data))
    mine[_HEAD.size : _HEAD.size + len(data)] = data
    return torch.frombuffer(mine, dtype=torch.uint8)


def _raise_first(layout: Layout, every: torch.Tensor, did: str) -> None:
    """Raise the reason of the first rank that has one; other failures precede non-finite gradients.

    Parameters
    ----------
    layout : Layout
    every : torch.Tensor
        What `_pack` returned on each rank, one row per rank.
    did : str
        As in `share_reasons`.
    """
    found: dict[int, list[tuple[int, str]]] = {_NONE: [], _BAD: [], _FAILED: []}
    for rank, row in enumerate(every.numpy()):
        kind, length = _HEAD.unpack_from(row.data)
        text = bytes(row[_HEAD.size : _HEAD.size + length])
        found[kind].append((rank, text.decode(errors="replace")))
    for rank, message in found[_FAILED]:
        raise ExchangeError(f"rank {rank} could not {did}: {message}", rank)
    for rank, reason in found[_BAD]:
        raise_bad(layout, json.loads(reason), rank)
    raise ExchangeError("a rank failed, but none reported a reason")
