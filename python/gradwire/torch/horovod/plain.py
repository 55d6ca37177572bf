"""Averages gradients by all-reduce, without the codec: paused, detached, or so decided."""

import torch

from gradwire.torch.transport import Channel, Work

__all__ = ["PlainAverage"]


class PlainAverage:
    """The plain average of a buffer, in progress.

    Attributes
    ----------
    work : Work
        The sum, in progress.

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
        self.work: Work = channel.all_reduce(buffer)

    def wait(self) -> torch.Tensor:
        """Wait for it, and return the buffer."""
        self.work.wait()
        return self._result.div_(self._size)
