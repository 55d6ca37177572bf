"""Brings tensors of one rank to all others."""

from collections.abc import Iterable

import torch

from gradwire.torch.transport import Channel

__all__ = ["share"]

_PIECE = 1 << 22
"""Bytes of one operation: each has the channel's limit of time, also on a slow link."""


@torch.no_grad()
def share(channel: Channel, tensors: Iterable[torch.Tensor], source: int) -> None:
    """Replace tensors by those of one rank, bit for bit. A collective.

    Parameters
    ----------
    channel : Channel
        A channel in which nothing else is in progress.
    tensors : iterable of torch.Tensor
        Alike on all ranks, of any dtype and on any device.
    source : int
    """
    for each in tensors:
        values = each.detach().cpu().contiguous().reshape(-1)
        for piece in torch.split(values.view(torch.uint8), _PIECE):
            channel.broadcast(piece, source).wait()
        if channel.rank != source:
            each.copy_(values.view(each.shape))
