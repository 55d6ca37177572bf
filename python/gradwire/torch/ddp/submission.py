"""What the hook calls: buckets are handed to the worker, and backward passes are counted."""

import contextlib
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import torch
from torch.distributed import GradBucket  # type: ignore[attr-defined]  # it exists, unlisted

from gradwire.torch import backends
from gradwire.torch.ddp.agreement import agree
from gradwire.torch.ddp.applying import Applying, set_rates
from gradwire.torch.ddp.backward import in_backward, raise_after_backward
from gradwire.torch.ddp.control import Control
from gradwire.torch.ddp.errors import ExchangeError, UndoError, fresh
from gradwire.torch.ddp.exchange import Exchange
from gradwire.torch.ddp.jobs import Job, Step
from gradwire.torch.ddp.layout import Layout, Layouts
from gradwire.torch.ddp.origins import Origin
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
    applying : Applying or None
        The optimizer, if `attach` was given one.
    joining : callable
        Tells whether the model is within `join`, where ranks without inputs take part.
    control : Control
    """

    def __init__(
        self,
        worker: Worker,
        exchange: Exchange,
        layouts: Layouts,
        grad_scaler: GradScaler | None,
        *,
        whole: bool,
        applying: Applying | None,
        joining: Callable[[], bool],
        control: Control,
    ) -> None:
        self._worker = worker
        self._control = control
        self._exchange = exchange
        self._layouts = layouts
        self._grad_scaler = grad_scaler
        self._whole = whole
        self._applying = applying
        self._joining = joining
        self._refusal: BaseException | None = None
        self._steps_before = 0
        self._last: Step | None = None
        self._next_index = 0
        self._pauses = 0
        self._aside = False
        self._read_scale = _one

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

    def undo_unapplied(self) -> None:
        """Undo the last pass if the optimizer has made no step since. Call after `Worker.settle`.

        For what may be the end of this process: no later pass could undo it.

        Raises
        ------
        UndoError
            Residuals in one buffer have taken it in.
        """
        applying = self._applying
        if applying is not None and applying.last is not None and not applying.last.applied:
            self._check_undo(applying.last, "the optimizer has not applied the last pass yet")
            self._worker.discard(applying.last)

    def _check_undo(self, step: Step, problem: str) -> None:
        """Raise an UndoError if a step is to be undone that cannot be."""
        if step.counted and self._exchange.postpones:
            raise UndoError(problem)

    # What the hook calls ----------------------------------------------------------------------

    def stands_aside(self, bucket: GradBucket) -> bool:
        """Tell whether DDP must average by itself; if so, record the pass as the last one."""
        if self._worker.broken is not None:
            return False
        applying, index = self._applying, bucket.index()
        if not self._pauses:
            if index == 0 or index < self._next_index:
                self._aside = in_backward() and self._is_stale()
            if not self._aside:
                return False
            self._next_index = index + 1
        self._last = Step(self.step, finished=True)  # for discard(): there is nothing to undo
        if applying is not None:
            applying.origins.averaged(bucket.parameters())
        return True

    def _is_stale(self) -> bool:
        """Tell whether a pass begins from gradients that the optimizer has applied already."""
        # Within join(), ranks without inputs could not know.
        return self._applying is not None and not self._joining() and self._applying.stale()

    def submit(self, bucket: GradBucket) -> "torch.futures.Future[torch.Tensor]":
        """Enqueue a bucket and return the future of its average."""
        buffer, index = bucket.buffer(), bucket.index()
        if self._worker.broken is not None:
            first = self._worker.broken
            text = f"gradwire stopped after an earlier error: {first}"
            return self._refuse(bucket, ExchangeError(text, getattr(first, "rank", None)))
        layout = self._layouts.of(bucket.parameters(), buffer)
        # A pass that is refused stays so: why may be told only once.
        ended = self._refusal is None and (self._last is None or self._last.finished)
        if ended or index < self._next_index or index == 0:
            # The same on all ranks: DDP has waited for all buckets of the previous step, whatever
            # their outcome, so the receiving thread has counted that step if it counts.
            self._refusal = self._begin(shadow=not in_backward())
            self._read_scale = self._scale()
        self._next_index = index + 1
        if self._refusal is not None:
            return self._refuse(bucket, self._refusal)
        future, step = self._enqueue(layout, buffer, last=bucket.is_last())
        if not in_backward():
            return future.then(functools.partial(_raise_broken, step))
        if self._ends(bucket):
            worker, applying = self._worker, self._applying  # not self: autograd may keep
            raise_after_backward(lambda: _verdict(worker, step, applying))  # callbacks for a while
        return future

    def _begin(self, *, shadow: bool = False) -> BaseException | None:
        """Begin a pass, or return why it must not be exchanged.

        Within `join`, a rank without inputs has shadow passes, which leave its ``.grad`` alone.
        """
        applying = self._applying
        if applying is None:
            self._last = Step(self.step)
            return None
        refusal = None if shadow else applying.refusal()
        if refusal is not None:
            self._last = None
            return refusal
        try:
            undo = self._drop(applying)
        except ExchangeError as error:
            self._last, self._worker.broken = None, error
            return error
        except UndoError as error:
            self._last = None
            return error
        rates = applying.rates()

        def prepare() -> None:
            undo()
            applying.take_over()
            set_rates(rates)

        self._last = applying.last = Step(self.step, prepare=prepare, applied=self._joining())
        return None

    def _drop(self, applying: Applying) -> Callable[[], None]:
        """Count the last pass no longer if its gradients were dropped; return what undoes it."""
        found = applying.dropped()
        if found is None:
            return lambda: None
        last, parameters = found
        if parameters and self._exchange.postpones:
            last.applied = True  # told once: the program may go on
            self._check_undo(last, "the last pass was cleared before the optimizer's step()")
        if len(parameters) == len(last.encoded):
            # Ranks that undid different passes would have slots of different sizes, which aborts
            # the process. So they meet first, but only if there is something to undo.
            with self._control.act(f"backward() with no step() after pass {last.number}"):
                pass
            if last.counted:
                self._worker.uncount(last)
            return last.undo_all

        return lambda: last.undo(parameters)

    def _refuse(
        self, bucket: GradBucket, error: BaseException
    ) -> "torch.futures.Future[torch.Tensor]":
        """Exchange nothing, and let the backward pass raise an error."""
        if not in_backward():
            raise error
        # Not raised here, which would leave DDP stuck half-way through its backward pass.
        if self._ends(bucket):
            raise_after_backward(lambda: error)
        buffer = bucket.buffer()
        refused = backends.of(buffer).bucket(buffer)
        refused.resolve(spoiled=True)
        return refused.future

    def _enqueue(
        self,
        layout: Layout,
        buffer: torch.Tensor,
        *,
        last: bool,
        given: bool = False,
    ) -> "tuple[torch.futures.Future[torch.Tensor], Step]":
        step = self._last
        assert step is not None
        if self._applying is not None and (given or in_backward()):
            origins = self._applying.origins
            origins.exchanged(layout.compressed, Origin.SENT)
            origins.exchanged((piece.parameter for piece in layout.dense), Origin.AVERAGED)
        carried = buffer.device.type in self._exchange.carriers
        bucket = backends.of(buffer).bucket(buffer, carried)
        self._worker.submit(
            Job(
                layout=layout,
                bucket=bucket,
                step=step,
                last=last,
                read_scale=_one if given else self._read_scale,
                enqueued=time.perf_counter(),
            )
        )
        return bucket.future, step

    def _scale(self) -> Callable[[], float]:
        """Return what reads the loss scale of this pass."""
        if self._grad_scaler is None:
            return _one
        # Not get_scale(), which waits for the device.
        kept = getattr(self._grad_scaler, "_scale", None)
        if isinstance(kept, torch.Tensor):
            return backends.of(kept).number(kept)
        scale = self._grad_scaler.get_scale()
        return lambda: scale

    def _ends(self, bucket: GradBucket) -> bool:
        """Tell whether DDP may end its part of the backward pass with this bucket."""
        return bucket.is_last() or not self._whole

    # What the optimizer calls -----------------------------------------------------------------

    def exchange(self, buckets: Sequence[tuple[Sequence[torch.Tensor], torch.Tensor]]) -> None:
        """Exchange buckets outside of a backward pass, as a pass of their own.

        Parameters
        ----------
        buckets : sequence of (sequence of torch.Tensor, torch.Tensor)
            The parameters of each bucket, and their gradients in one flat buffer, which receives
            the averages.

        Raises
        ------
        GradientError, ExchangeError, UpdateError
            As a backward pass does, also with a loss scaler.
        """
        if self._worker.broken is not None:
            raise fresh(self._worker.broken)
        refusal = self._begin()
        if refusal is not None:
            raise refusal
        self._next_index = 0
        layouts = [self._layouts.of(tensors, buffer) for tensors, buffer in buckets]
        waiting = [
            self._enqueue(layout, buffer, last=layout is layouts[-1], given=True)
            for layout, (_, buffer) in zip(layouts, buckets, strict=True)
        ]
        for future, _ in waiting:
            future.wait()
        for _, step in waiting[:1]:
            if step.error is not None:
                raise fresh(step.error)

    # What the handle calls --------------------------------------------------------------------

    def discard(self, control: Control) -> None:
        """Undo the last backward pass. A collective."""
        self.check_unbroken()
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
        self._check_undo(step, "discard() is to undo the last pass")
        self._worker.discard(step)
        self._last = None
        if self._applying is not None:
            self._applying.discarded(step)

    @contextlib.contextmanager
    def paused(self, control: Control) -> Iterator[None]:
        """Stand aside in this block. A collective at entry."""
        self.check_unbroken()
        with control.act("paused()"):
            pass
        self._pauses += 1
        try:
            yield
        finally:
            self._pauses -= 1

    def check_unbroken(self) -> None:
        """Raise what broke the exchange, if anything did."""
        if self._worker.broken is not None:
            raise fresh(self._worker.broken)


def _one() -> float:
    """Return the scale of a loss that is not scaled."""
    return 1.0


def _verdict(worker: Worker, step: Step, applying: Applying | None) -> BaseException | None:
    error = worker.verdict(step)
    if applying is not None and error is None:
        applying.watch()
    return error


def _raise_broken(step: Step, future: "torch.futures.Future[torch.Tensor]") -> torch.Tensor:
    """Let `join` end on a rank without inputs. After a GradientError the others may go on."""
    if isinstance(step.error, ExchangeError):
        raise fresh(step.error)
    return future.value()
