"""Brings tensors of one rank to all others."""

from collections.abc import Iterable

import torch

from gradwire.torch.diloco.replica import Replica
from gradwire.torch.reducer.agreement import agree
from gradwire.torch.reducer.engine import Engine
from gradwire.torch.transport import Channel

__all__ = ["share", "together"]

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


def together(engine: Engine, replica: Replica) -> None:
    """Begin with the parameters and buffers of rank 0. A collective.

    Raises
    ------
    ValueError
        The ranks have different settings. The engine is closed then.
    """
    try:
        with engine.control.act("DiLoCo()") as channel:
            agree(channel, "made a DiLoCo", replica.settings)
            share(channel, [*replica.shared(), *replica.buffers], 0)
    except BaseException:
        engine.abandon()
        raise
    for part in replica.parts:
        part.write()
    replica.start(engine.rank)
