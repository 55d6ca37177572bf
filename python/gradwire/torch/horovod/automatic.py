"""What the optimizer asks with ``"auto"``: buckets go by the codec, or by an all-reduce."""

import contextlib
import queue
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from gradwire.torch.auto import AutoController
from gradwire.torch.engine.backward import BackwardPasses
from gradwire.torch.engine.step import Step
from gradwire.torch.horovod.dense_average import PlainAverage
from gradwire.torch.horovod.readiness import BucketReadiness
from gradwire.torch.transport import Work

__all__ = ["AutomaticExchange"]

_Noted = tuple[Work, Callable[[], None]]


class AutomaticExchange:
    """Has the buckets of a turn averaged as a pilot decides.

    Parameters
    ----------
    passes : BackwardPasses
    pilot : AutoController
    plainly : callable
        Starts to average a buffer without the codec.
    """

    def __init__(
        self,
        passes: BackwardPasses,
        pilot: AutoController,
        plainly: Callable[[torch.Tensor], PlainAverage],
    ) -> None:
        self._passes = passes
        self._pilot = pilot
        self._plainly = plainly
        self._ends = _Ends()
        self._codes = False

    def interrupt(self) -> None:
        """Leave out a turn that is averaged by other means."""
        self._pilot.interrupt()

    def waits(self, turn: BucketReadiness) -> bool:
        """Tell whether a turn, of which a bucket is due, must not begin during the backward pass.

        Where ranks meet, they wait for each other. In a hook that could be for ever: of another
        rank a parameter may be unused, and that one goes on to the next collective of the program.
        ``synchronize()`` is at the same place among them on all ranks.
        """
        if not self._pilot.meets:
            return False
        if turn.since is None:
            turn.since = self._pilot.now
        return True

    def begin(self, turn: BucketReadiness) -> BaseException | None:
        """Begin a turn, or return why it must not be exchanged.

        A collective if the ranks look at what they have measured: the same turn on all of them.
        """
        pilot = self._pilot
        waited = pilot.meets
        error = pilot.begin(turn.since)
        if waited:
            pilot.leave_out()
        self._codes = any(map(pilot.encodes, turn.buckets))
        if error is None and self._codes:
            error = self._passes.begin()
        return error

    def exchange(
        self, tensors: Sequence[torch.Tensor], buffer: torch.Tensor, *, last: bool
    ) -> tuple[Callable[[], Any], Step | None]:
        """Start to average a buffer; return what waits for it and returns the result.

        With the step that it is a part of, if it goes by the codec.
        """
        passes, pilot = self._passes, self._pilot
        if pilot.take(tensors, buffer, last=last):
            future, step = passes.submit(tensors, buffer, last=last)
            pilot.submitted()
            return future.wait, step
        passes.averaged(tensors, alone=not self._codes)
        average = self._plainly(buffer)
        wide = buffer.dtype == torch.bfloat16  # which a channel of Horovod adds up in float32
        ended = pilot.started(buffer, 4 if wide else buffer.element_size())
        if ended is not None:
            self._ends.note(average.work, ended)
        return average.wait, None

    def close(self) -> None:
        """End what was started for it."""
        self._ends.close()


class _Ends:
    """Notes when collectives end, one after another.

    Horovod calls nobody: so a thread waits, which otherwise the optimizer does after the backward
    pass, when most of them have ended long ago.
    """

    def __init__(self) -> None:
        self._noted: queue.SimpleQueue[_Noted | None] = queue.SimpleQueue()
        self._finalizer: weakref.finalize[Any, Any] | None = None

    def note(self, work: Work, ended: Callable[[], None]) -> None:
        """Call this when a collective has ended."""
        if self._finalizer is None:
            thread = threading.Thread(
                target=_follow, args=(self._noted,), name="gradwire-ends", daemon=True
            )
            thread.start()
            self._finalizer = weakref.finalize(self, self._noted.put, None)
        self._noted.put((work, ended))

    def close(self) -> None:
        """End the thread, once it has nothing to wait for."""
        if self._finalizer is not None:
            self._finalizer()


def _follow(noted: "queue.SimpleQueue[_Noted | None]") -> None:
    while (found := noted.get()) is not None:
        work, ended = found
        with contextlib.suppress(Exception):  # the optimizer is told, too
            work.wait()
            ended()
        del found, work, ended  # what they hold may go
