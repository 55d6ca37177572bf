"""Averages gradients as Horovod's own optimizer: paused, detached, or so decided."""

import torch

from gradwire.torch.transport import Work
from gradwire.torch.transport.horovod import HorovodChannel

__all__ = ["PlainAverage"]


class PlainAverage:
    """The plain average of a buffer, or its sum, in progress.

    Attributes
    ----------
    work : Work
        What is in progress.

    Parameters
    ----------
    channel : HorovodChannel
        A channel with no other user.
    buffer : torch.Tensor
        Receives the result; sparse or not.
    sums : bool
        It is the sum, as with ``op=hvd.Sum``.
    predivide : float
        ``gradient_predivide_factor``, of an average.
    """

    def __init__(
        self,
        channel: HorovodChannel,
        buffer: torch.Tensor,
        *,
        sums: bool = False,
        predivide: float = 1.0,
    ) -> None:
        self._result = buffer
        self.work: Work = channel.all_reduce(buffer) if sums else channel.average(buffer, predivide)

    def wait(self) -> torch.Tensor:
        """Wait for it, and return the buffer."""
        self.work.wait()
        return self._result
