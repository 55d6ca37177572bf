"""Averages gradients like Horovod's own optimizer, without the codec."""

import contextlib
import queue
import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch

from gradwire.torch.transport import Work
from gradwire.torch.transport.horovod import HorovodChannel

_Ended = tuple[Work, Callable[[], None]]


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
    """Implements `gradwire.torch.engine.backward.DenseAverage`, with a thread for end times.

    Horovod has no callback for the end of a collective, and the optimizer waits only after the
    backward pass, when most have ended long ago. So a thread waits for each. The channel has no
    other user; ``predivide`` is Horovod's ``gradient_predivide_factor``.
    """

    def __init__(self, channel: HorovodChannel, *, sums: bool, predivide: float) -> None:
        self._channel = channel
        self._sums = sums
        self._predivide = predivide
        self._waiting: queue.SimpleQueue[_Ended | None] = queue.SimpleQueue()
        self._finalizer: weakref.finalize[Any, Any] | None = None

    def __call__(
        self, buffer: torch.Tensor, *, half: bool = False, ended: Callable[[], None] | None = None
    ) -> HorovodAverage:
        """Start to average a buffer, sparse or not, in place."""
        assert not half  # Horovod does not add up in bfloat16
        if self._sums:
            work = self._channel.all_reduce(buffer)
        else:
            work = self._channel.average(buffer, self._predivide)
        if ended is not None:
            if self._finalizer is None:
                thread = threading.Thread(
                    target=_follow, args=(self._waiting,), name="gradwire-ends", daemon=True
                )
                thread.start()
                self._finalizer = weakref.finalize(self, self._waiting.put, None)
            self._waiting.put((work, ended))
        return HorovodAverage(work, buffer)

    def close(self) -> None:
        """End the thread once all collectives have ended."""
        if self._finalizer is not None:
            self._finalizer()


def _follow(waiting: "queue.SimpleQueue[_Ended | None]") -> None:
    while (found := waiting.get()) is not None:
        work, ended = found
        with contextlib.suppress(Exception):  # the optimizer is told, too
            work.wait()
            ended()
        del found, work, ended  # what they hold may go
