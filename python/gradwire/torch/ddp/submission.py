"""What the hook calls: buckets are handed to the worker, and backward passes are counted."""

import contextlib
import functools
import time
from collections.abc import Iterator
from typing import Protocol

import torch
from torch.distributed import GradBucket  # type: ignore[attr-defined]  # it exists, unlisted

from gradwire.torch.ddp.agreement import agree
from gradwire.torch.ddp.backward import in_backward, raise_after_backward
from gradwire.torch.ddp.control import Control
from gradwire.torch.ddp.errors import ExchangeError, fresh
from gradwire.torch.ddp.exchange import Exchange
from gradwire.torch.ddp.jobs import Job, Step, spoil
from gradwire.torch.ddp.layout import Layouts
from gradwire.torch.ddp.worker import Worker

__all__ = ["GradScaler", "Submission"]


class GradScaler(Protocol):
    """The methods of `torch.amp.GradScaler` that gradwire calls."""

    def get_scale(self) -> float:
        """Return the loss scale."""

    def is_enabled(self) -> bool:
        """Tell whether the loss is scaled and non-finite steps are skipped."""


class Submission:
    """Submits the buckets of each backward pass to the worker.

    Parameters
    ----------
    worker : Worker
    exchange : Exchange
    layouts : Layouts
    grad_scaler : GradScaler or None
        An enabled loss scaler.
    whole : bool
        As in `Worker`.
    """

    def __init__(
        self,
        worker: Worker,
        exchange: Exchange,
        layouts: Layouts,
        grad_scaler: GradScaler | None,
        *,
        whole: bool,
    ) -> None:
        self._worker = worker
        self._exchange = exchange
        self._layouts = layouts
        self._grad_scaler = grad_scaler
        self._whole = whole
        self._steps_before = 0
        self._last: Step | None = None
        self._next_index = 0
        self._pauses = 0
        self._scale = 1.0

    @property
    def step(self) -> int:
        """Backward passes exchanged and not rolled back, including those before a resume."""
        return self._steps_before + self._exchange.times.steps_ever

    def restart(self, step: int) -> None:
        """Continue from a checkpoint of this step, on all ranks. Call after `Worker.settle`."""
        self._steps_before = step - self._exchange.times.steps_ever
        self._worker.restart()
        self.forget()

    def forget(self) -> None:
        """Compute all layouts anew, and make the last backward pass one that cannot be discarded.

        Call it after any change of the parameters' codecs or states.
        """
        self._layouts.forget()
        self._last = None

    # What the hook calls ----------------------------------------------------------------------

    def stands_aside(self) -> bool:
        """Tell whether DDP must average by itself; if so, record the pass as the last one."""
        if not self._pauses or self._worker.broken is not None:
            return False
        self._last = Step(self.step, finished=True)  # for discard(): there is nothing to undo
        return True

    def submit(self, bucket: GradBucket) -> "torch.futures.Future[torch.Tensor]":
        """Enqueue a bucket and return the future of its average."""
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        buffer, index = bucket.buffer(), bucket.index()
        if self._worker.broken is not None:
            first = self._worker.broken
            text = f"gradwire stopped after an earlier error: {first}"
            error = ExchangeError(text, getattr(first, "rank", None))
            if not in_backward():
                raise error
            # Not raised here, which would leave DDP stuck half-way through its backward pass.
            if self._ends(bucket):
                raise_after_backward(lambda: error)
            future.set_result(spoil(buffer))
            return future
        layout = self._layouts.of(bucket.parameters(), buffer)
        if self._last is None or self._last.finished or index < self._next_index or index == 0:
            # The same on all ranks: DDP has waited for all buckets of the previous step, whatever
            # their outcome, so the receiving thread has counted that step if it counts.
            self._last = Step(self.step)
            self._scale = 1.0 if self._grad_scaler is None else self._grad_scaler.get_scale()
        self._next_index = index + 1
        step = self._last
        self._worker.submit(
            Job(
                layout=layout,
                buffer=buffer,
                result=buffer,
                step=step,
                last=bucket.is_last(),
                scale=self._scale,
                future=future,
                enqueued=time.perf_counter(),
            )
        )
        if not in_backward():
            return future.then(functools.partial(_raise_broken, step))
        if self._ends(bucket):
            worker = self._worker  # not self: autograd may keep callbacks for a while
            raise_after_backward(lambda: worker.verdict(step))
        return future

    def _ends(self, bucket: GradBucket) -> bool:
        """Tell whether DDP may end its part of the backward pass with this bucket."""
        return bucket.is_last() or not self._whole

    # What the handle calls --------------------------------------------------------------------

    def discard(self, control: Control) -> None:
        """Undo the last backward pass. A collective."""
        self._check_unbroken()
        self._worker.settle()
        step = self._last
        known = None if step is None else step.number
        with control.act("discard()") as group:
            agree(group, "discarded", {"step": self.step, "last backward pass": known})
        if step is None:
            raise ValueError(
                "there is no step to discard: discard() undoes the last backward pass only, and "
                "none was exchanged since attach(), epoch(), load_state_dict() or discard()"
            )
        self._worker.discard(step)
        self._last = None

    @contextlib.contextmanager
    def paused(self, control: Control) -> Iterator[None]:
        """Stand aside in this block. A collective at entry."""
        self._check_unbroken()
        with control.act("paused()"):
            pass
        self._pauses += 1
        try:
            yield
        finally:
            self._pauses -= 1

    def _check_unbroken(self) -> None:
        if self._worker.broken is not None:
            raise fresh(self._worker.broken)


def _raise_broken(step: Step, future: "torch.futures.Future[torch.Tensor]") -> torch.Tensor:
    """Let `join` end on a rank without inputs. After a GradientError the others may go on."""
    if isinstance(step.error, ExchangeError):
        raise fresh(step.error)
    return future.value()
