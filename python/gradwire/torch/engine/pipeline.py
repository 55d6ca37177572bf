"""Two threads and two queues that exchange buckets, in the same order on all ranks."""

import os
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

import torch

from gradwire.torch import backends
from gradwire.torch.engine.bucket_contents import BucketContents
from gradwire.torch.engine.step import BucketTask, InFlightBucket, Step
from gradwire.torch.errors import (
    AgreementError,
    ExchangeError,
    GradientError,
    fresh,
    release_frames,
)
from gradwire.torch.exchange.base import BucketExchange

T = TypeVar("T")


def broken_by(error: BaseException, text: str) -> ExchangeError:
    """Return an ExchangeError unchanged; wrap any other error in one, as its cause."""
    if isinstance(error, ExchangeError):
        return error
    broken = ExchangeError(f"{text}: {type(error).__name__}: {error}")
    broken.__cause__ = error
    return broken


class ExchangePipeline:
    """Exchanges the buckets that are submitted, and resolves their futures.

    One thread encodes and starts the collectives; the other waits for them and decodes. Encoding a
    bucket thus overlaps the exchange of the previous one. Both threads work first in, first out,
    and each task starts the same collectives on every rank whatever its gradients contain, so
    nothing that only one rank knows can put the ranks out of step.

    Futures are always resolved with the task's result, made infinite if the step does not count,
    because DDP must complete its backward pass. `verdict` returns what the pass raises afterwards.

    ``scaled`` tells that a loss scaler is in use, which skips non-finite steps. The futures of a
    step are then resolved together: a bad bucket makes the earlier ones infinite as well, and every
    optimizer that shares the scaler skips the step. A step whose last bucket never arrives is a
    failed backward pass. ``confirm`` exchanges the outcome of a step with the other ranks and
    raises their errors: no bucket is then marked as the last one, and `end` ends steps.
    """

    def __init__(
        self,
        exchange: BucketExchange,
        *,
        scaled: bool,
        confirm: Callable[[BaseException | None], None] | None = None,
    ) -> None:
        self._exchange = exchange
        self._scaled = scaled
        self._confirm = confirm
        self.ends_apart = confirm is not None  # by `end`, and not with their last bucket
        self._resolves_together = scaled or confirm is not None
        self._tasks: queue.Queue[BucketTask | Callable[[], None] | None] = queue.Queue()
        self._in_flight: queue.Queue[InFlightBucket | None] = queue.Queue()
        self._step: Step | None = None
        self._sequence = 0
        # Why a collective was skipped on this rank: no other may follow.
        self._unsent: BaseException | None = None
        self._pid = os.getpid()
        self._ending = threading.Lock()
        self._ended = False
        self.broken: BaseException | None = None
        self.last_error: BaseException | None = None
        self._threads = [
            threading.Thread(target=self._send, name="gradwire-send", daemon=True),
            threading.Thread(target=self._receive, name="gradwire-receive", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    @property
    def forked(self) -> bool:
        """Whether this process was forked after `attach`: no threads here, locks may stay held."""
        return os.getpid() != self._pid

    def submit(
        self,
        step: Step,
        contents: BucketContents,
        buffer: torch.Tensor,
        *,
        last: bool,
        read_scale: Callable[[], float] | None = None,
        unused: bool = True,
    ) -> "torch.futures.Future[torch.Tensor]":
        """Enqueue a flat buffer; return the future of its average, in place. See `BucketTask`."""
        if os.getpid() != self._pid:
            raise ExchangeError("this process was forked after attach(): it is not a rank")
        on_device = buffer.device.type in self._exchange.device_backends
        bucket = backends.backend_for(buffer).bucket(buffer, on_device)
        now = time.perf_counter()
        task = BucketTask(contents, bucket, step, last, read_scale, now, unused)
        self._tasks.put(task)
        return bucket.future

    def run_in_sender(self, act: Callable[[], T]) -> T:
        """Call a function in the sending thread, between buckets, and return its result.

        For functions that read or undo states: using a state in two threads at once is an error,
        which in the sending thread would fail all ranks.
        """
        answer: Future[T] = Future()

        def run() -> None:
            try:
                answer.set_result(act())
            except BaseException as error:  # for the caller; this thread goes on
                answer.set_exception(error)

        if self.forked:
            return act()
        with self._ending:
            if self._ended:
                return act()
            self._tasks.put(run)
        return answer.result()

    def drain(self, timeout: float | None = None) -> bool:
        """Wait until every submitted bucket is done; return False after ``timeout`` seconds."""
        if self.forked:
            return True
        deadline = None if timeout is None else time.monotonic() + timeout
        return all(_join(tasks, deadline) for tasks in (self._tasks, self._in_flight))

    def flush(self, timeout: float | None = None) -> bool:
        """Drain, then undo an incomplete step; returns as `drain`. Not within a backward pass."""
        if not self.drain(timeout):
            return False
        self.run_in_sender(lambda: self._close(None))
        return True

    def end(self, step: Step) -> None:
        """End a step when all its buckets are done, and resolve their futures."""
        start = time.perf_counter()
        self.run_in_sender(lambda: self._end(step))
        self._exchange.times.add("wait", start)

    def discard(self, step: Step) -> None:
        """Undo the last step, if it counted. Call it once, after `flush`."""
        if step.counted:
            self.uncount(step)
            self.run_in_sender(step.undo_all)

    def uncount(self, step: Step) -> None:
        """Take back that a step counts, before undoing it. No bucket may be in progress."""
        step.counted = False
        self._exchange.times.steps_ever -= 1

    def restart(self) -> None:
        """Count buckets from zero again, on all ranks. Call it after `flush`."""
        self._sequence = 0

    def verdict(self, step: Step) -> BaseException | None:
        """Return the error that the backward pass must raise, after the step's futures."""
        skipped = self._scaled and isinstance(step.error, GradientError)  # the scaler handles it
        return None if step.error is None or skipped else fresh(step.error)

    def stop(self, timeout: float | None = None) -> bool:
        """End both threads once the queues are empty; return whether they ended in time."""
        if self.forked:
            return False
        with self._ending:
            self._ended = True
            self._tasks.put(None)
        for thread in self._threads:
            thread.join(timeout)
        return not any(thread.is_alive() for thread in self._threads)

    # The sending thread -----------------------------------------------------------------------

    def _send(self) -> None:
        while (task := self._tasks.get()) is not None:
            if isinstance(task, BucketTask):
                self._in_flight.put(self._launch(task))
            else:
                self._in_flight.join()
                task()
            self._tasks.task_done()
            task = None  # what it refers to may be dropped while this thread waits
        self._in_flight.put(None)
        self._tasks.task_done()

    def _launch(self, task: BucketTask) -> InFlightBucket:
        sequence = self._sequence
        self._sequence += 1
        try:
            step = task.step
            if step is not self._step:
                self._in_flight.join()
                self._close(step)
                if step.prepare is not None and self.broken is None:
                    task.bucket.wait()  # it reads what the optimizer keeps on the device
                    try:
                        step.prepare()
                    except AgreementError as error:  # on all ranks, so that the next step may go on
                        step.refused = error
                    step.prepare = None
            for reason in (self.broken, self._unsent, step.refused):
                if reason is not None:
                    raise reason
            return self._exchange.start(task, sequence)
        except BaseException as error:  # the collective could not even be started
            release_frames(error)
            if task.step.refused is None:
                self._unsent = error
            return InFlightBucket(task, sequence, error=error)

    def _close(self, following: Step | None) -> None:
        """End the previous step. An incomplete backward pass must leave no trace."""
        previous, self._step = self._step, following
        if previous is not None and not previous.finished:
            previous.undo_all()

    def _end(self, step: Step) -> None:
        """End a step; the receiving thread has nothing to do."""
        try:
            if self._confirm is not None:
                self._confirm(step.error)
        except GradientError as error:
            self.last_error = step.error = error
        except BaseException as error:
            self._break(step, error)
        self._finish(step)
        self._resolve(step)

    # The receiving thread ---------------------------------------------------------------------

    def _receive(self) -> None:
        while (flight := self._in_flight.get()) is not None:
            task = flight.task
            try:
                if self.broken is not None:
                    raise self.broken
                self._exchange.receive(flight)
            except (AgreementError, GradientError) as error:
                release_frames(error)
                self.last_error = task.step.error = task.step.error or error
            except BaseException as error:
                self._break(task.step, error)
            try:
                self._deliver(flight)
            except BaseException as error:  # an unresolved future would hang the backward pass
                self._break(task.step, error)
                self._resolve(task.step)
            self._in_flight.task_done()
        self._in_flight.task_done()

    def _break(self, step: Step, error: BaseException) -> None:
        release_frames(error)
        if self.broken is None:
            self.broken = broken_by(error, "gradwire failed on this rank")
        step.error = self.broken

    def _deliver(self, flight: InFlightBucket) -> None:
        task, step = flight.task, flight.task.step
        step.completed.append(task.bucket)
        if task.last:
            self._finish(step)
            self._exchange.times.add("wait", task.enqueued)
        if self._resolves_together and not task.last and self.broken is None:
            return
        self._resolve(step)

    def _resolve(self, step: Step) -> None:
        while step.completed:
            bucket = step.completed.pop(0)
            try:
                bucket.resolve(poisoned=step.error is not None)
            except BaseException as error:  # as of a device that is lost: nothing can be written
                self._break(step, error)
                future: torch.futures.Future[Any] = bucket.future
                if not future.done():
                    future.set_exception(ExchangeError(str(self.broken)))

    def _finish(self, step: Step) -> None:
        """End a step: if it does not count, undo its changes."""
        step.finished = True
        times = self._exchange.times
        times.steps += 1
        if step.error is None:
            step.counted = True
            times.steps_ever += 1
        else:
            step.undo_all()


def _join(tasks: "queue.Queue[Any]", deadline: float | None) -> bool:
    """Wait for all tasks of a queue, at most until the deadline; return whether they are done."""
    with tasks.all_tasks_done:
        left = None if deadline is None else max(deadline - time.monotonic(), 0.0)
        return tasks.all_tasks_done.wait_for(lambda: not tasks.unfinished_tasks, left)
