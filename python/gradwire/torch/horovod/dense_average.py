"""Averages gradients like Horovod's own optimizer, without the codec."""

import torch

from gradwire.torch.transport import Work
from gradwire.torch.transport.horovod import HorovodChannel


class HorovodAverage:
    """The average of a buffer, or its sum, in progress."""

    def __init__(self, work: Work, buffer: torch.Tensor) -> None:
        self._work = work
        self._buffer = buffer

    def wait(self) -> torch.Tensor:
        """Wait for it, and return the buffer."""
        self._work.wait()
        return self._buffer


class HorovodAverages:
    """Implements `gradwire.torch.engine.backward.DenseAverage`.

    The channel has no other user; ``predivide`` is Horovod's ``gradient_predivide_factor``.
    """

    def __init__(self, channel: HorovodChannel, *, sums: bool, predivide: float) -> None:
        self._channel = channel
        self._sums = sums
        self._predivide = predivide

    def __call__(self, buffer: torch.Tensor, *, half: bool = False) -> HorovodAverage:
        """Start to average a buffer, sparse or not, in place."""
        assert not half  # Horovod does not add up in bfloat16
        if self._sums:
            work = self._channel.all_reduce(buffer)
        else:
            work = self._channel.average(buffer, self._predivide)
        return HorovodAverage(work, buffer)
