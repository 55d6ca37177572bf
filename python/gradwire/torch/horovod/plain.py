"""Averages gradients by all-reduce: while a handle is paused, and after `Handle.detach`."""

import torch

from gradwire.torch.transport import Channel, Work

__all__ = ["PlainAverage"]


class PlainAverage:
    """The plain average of a buffer, in progress.

    Parameters
    ----------
    channel : Channel
        A channel with no other user.
    buffer : torch.Tensor
        Receives the average; sparse or not.
    """

    def __init__(self, channel: Channel, buffer: torch.Tensor) -> None:
        self._size = channel.size
        self._result = buffer
        self._work: Work = channel.all_reduce(buffer)

    def wait(self) -> torch.Tensor:
        """Wait for it, and return the buffer."""
        self._work.wait()
        return self._result.div_(self._size)
