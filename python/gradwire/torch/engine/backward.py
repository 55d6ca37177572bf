"""Backward passes: their buckets are handed to the worker, and they are counted or undone."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch

from gradwire.torch import backends
from gradwire.torch.engine.config import GradScaler
from gradwire.torch.engine.consensus import ControlChannel, agree
from gradwire.torch.engine.grad_tracker import GradSource
from gradwire.torch.engine.layout import Layout, Layouts
from gradwire.torch.engine.optimizer_link import OptimizerLink, set_rates
from gradwire.torch.engine.pipeline import ExchangePipeline
from gradwire.torch.engine.scheduler import Scheduler
from gradwire.torch.engine.step import Step
from gradwire.torch.errors import ExchangeError, GradientError, UndoError, UpdateError, fresh
from gradwire.torch.exchange.base import Exchange

__all__ = ["BackwardPasses"]


class BackwardPasses:
    """The passes of one attachment, one after another, each of any number of buckets.

    Attributes
    ----------
    restarts : int
        How often states were loaded: what is known of earlier steps does not hold after it.

    Parameters
    ----------
    worker : ExchangePipeline
    exchange : Exchange
    layouts : Layouts
    scheduler : Scheduler
    grad_scaler : GradScaler or None
        An enabled loss scaler.
    applying : OptimizerLink or None
        The optimizer, if `attach` was given one.
    joining : callable
        Tells whether the model is within `join`, where ranks without inputs take part.
    control : ControlChannel
    """

    def __init__(
        self,
        worker: ExchangePipeline,
        exchange: Exchange,
        layouts: Layouts,
        scheduler: Scheduler,
        grad_scaler: GradScaler | None,
        *,
        applying: OptimizerLink | None,
        joining: Callable[[], bool],
        control: ControlChannel,
    ) -> None:
        self._worker = worker
        self._control = control
        self._exchange = exchange
        self._layouts = layouts
        self._scheduler = scheduler
        self._grad_scaler = grad_scaler
        self._applying = applying
        self._joining = joining
        self._steps_before = 0
        self.restarts = 0
        self._last: Step | None = None
        self._submitted: list[Layout] = []  # in the last pass
        self._pauses = 0
        self._changed = True  # what is sent, or a state, since the last pass
        self._read_scale = _one

    @property
    def step(self) -> int:
        """Backward passes exchanged and not rolled back, including those before a resume."""
        return self._steps_before + self._exchange.times.steps_ever

    def restart(self, step: int) -> None:
        """Continue from a checkpoint of this step, on all ranks, after the pipeline has settled."""
        self._steps_before = step - self._exchange.times.steps_ever
        self.restarts += 1
        self._worker.restart()
        self.forget()
        self._changed = self._applying is None or not self._applying.measured

    def forget(self) -> None:
        """Compute all layouts anew, and make the last backward pass one that cannot be discarded.

        Call it after any change of the parameters' codecs or states.
        """
        self._layouts.forget()
        self._last, self._changed = None, True

    def undo_unapplied(self) -> None:
        """Undo the last pass if the optimizer has made no step since.

        Call it when the pipeline has settled and this process may end: no later pass could undo it.

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

    # What gives gradients calls ---------------------------------------------------------------

    @property
    def broken(self) -> BaseException | None:
        """What broke the exchange, if anything did."""
        return self._worker.broken

    @property
    def ended(self) -> bool:
        """Whether no pass is under way."""
        return self._last is None or self._last.finished

    @property
    def are_paused(self) -> bool:
        """Whether passes are to be left to plain averages for now."""
        return self._pauses > 0

    def are_stale(self) -> bool:
        """Tell whether a pass begins from gradients that the optimizer has applied already."""
        # Within join(), ranks without inputs could not know.
        return self._applying is not None and not self._joining() and self._applying.stale()

    def defer(self) -> None:
        """Leave it to the optimizer's step from now on to raise a GradientError."""
        if self._applying is not None:
            self._applying.defer()

    @property
    def last(self) -> Step | None:
        """The last pass, if it can be discarded."""
        return self._last

    def averaged(self, parameters: Iterable[torch.Tensor], *, alone: bool = True) -> None:
        """Record gradients that are averaged by other means: the last pass, not to be undone.

        If not alone, other buckets of the pass are exchanged.
        """
        if alone:
            self._last = Step(self.step, finished=True)  # for discard(): there is nothing to undo
        if self._applying is not None:
            self._applying.tracker.averaged(parameters)

    def arriving(self, parameters: Iterable[torch.Tensor]) -> None:
        """Record that gradients of this rank are about to be added to the ``.grad`` of these."""
        if self._applying is not None:
            self._applying.tracker.arriving(parameters)

    def change(self, act: Callable[[], None]) -> BaseException | None:
        """Change codecs where no pass is under way; return an error that has broken the exchange.

        What the last pass has left and was thrown away is undone before. All ranks call it at the
        same pass.
        """
        try:
            self._worker.flush()
            if self._applying is not None:
                self._worker.run_in_sender(self._drop(self._applying))
                self._applying.keep()
            act()
        except (UndoError, UpdateError) as error:
            return error
        except Exception as error:  # in a hook of DDP, which would carry on half a step
            text = f"gradwire could not decide: {type(error).__name__}: {error}"
            broken = error if isinstance(error, ExchangeError) else ExchangeError(text)
            if broken is not error:
                broken.__cause__ = error
            self._last, self._worker.broken = None, broken
            return broken
        return None

    def begin(self, *, shadow: bool = False) -> BaseException | None:
        """Begin a pass, or return why it must not be exchanged.

        Call it when the futures of the previous pass are resolved, whatever their outcome: the
        receiving thread has then counted that pass, if it counts, on all ranks.

        Within `join`, a rank without inputs has shadow passes, which leave its ``.grad`` alone.
        """
        try:
            refusal = self._begin(shadow=shadow)
        except Warning as error:  # which the program has for errors; all ranks have the same
            refusal = error
        self._read_scale = self._scale()
        return refusal

    def submit(
        self,
        tensors: Sequence[torch.Tensor],
        buffer: torch.Tensor,
        *,
        last: bool,
        placed: bool = True,
    ) -> "tuple[torch.futures.Future[torch.Tensor], Step]":
        """Enqueue a bucket of the pass; return the future of its average, and the pass.

        Parameters
        ----------
        tensors : sequence of torch.Tensor
            The parameters of the bucket.
        buffer : torch.Tensor
            Their gradients, flat, one after another; receives the averages.
        last : bool
            It is the last bucket of the pass.
        placed : bool
            What it brings is for ``.grad``, on this rank too.
        """
        layout = self._layouts.of(tensors, buffer)
        return self._enqueue(layout, buffer, self._read_scale, last=last, placed=placed)

    def end(self) -> BaseException | None:
        """End a pass of which no bucket was the last; return the error it has to raise.

        Its futures are resolved then.
        """
        step = self._last
        assert step is not None  # begun
        self._worker.end(step)
        return self._worker.verdict(step)

    def placed(self) -> None:
        """Record that the averages of the pass are in ``.grad`` now, if they are only now."""
        if self._applying is None:
            return
        for layout in self._submitted:
            self._mark(layout)
        self._applying.watch()

    def ending(self) -> Callable[[Step], BaseException | None]:
        """Return what tells, once a pass is complete, which error it has to raise.

        It does not refer to this object: autograd may keep its callbacks for a while.
        """
        worker, applying = self._worker, self._applying

        def verdict(step: Step) -> BaseException | None:
            error = worker.verdict(step)
            if applying is not None and applying.defers and isinstance(error, GradientError):
                return None  # the optimizer's step raises it
            if applying is not None and error is None:
                applying.watch()
            return error

        return verdict

    def _begin(self, *, shadow: bool = False) -> BaseException | None:
        self._submitted.clear()
        applying = self._applying
        if applying is None:
            self._advance(_nothing)
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
        except (UndoError, UpdateError) as error:
            self._last = None
            return error
        undo = self._advance(undo)
        rates = applying.rates()

        def prepare() -> None:
            undo()
            applying.take_over()
            set_rates(rates)

        number = self.step
        # Where moments may change hands, and in fewer and fewer passes in between.
        measures = self._changed or number & (number - 1) == 0
        self._changed = False
        self._last = applying.last = Step(
            number, prepare=prepare, applied=self._joining(), measures=measures
        )
        return None

    def _advance(self, undo: Callable[[], None]) -> Callable[[], None]:
        """Advance a schedule that counts steps; return what is still to be done of an undo."""
        if not self._scheduler.is_due(self.step):
            return undo
        self._worker.flush()
        self._worker.run_in_sender(undo)
        try:
            self._scheduler.advance_to(self.step)
        finally:
            self.forget()
        return _nothing

    def _drop(self, applying: OptimizerLink) -> Callable[[], None]:
        """Count the last pass no longer if its gradients were dropped; return what undoes it."""
        found = applying.dropped()
        if found is None:
            return _nothing
        last, parameters, whole = found
        if parameters:
            applying.claim.check_undone()
        if parameters and self._exchange.postpones:
            last.applied = True  # told once: the program may go on
            self._check_undo(last, "the last pass was cleared before the optimizer's step()")
        if whole:
            # Ranks that undid different passes would have slots of different sizes, which aborts
            # the process. So they meet first, but only if there is something to undo.
            with self._control.act(f"backward() with no step() after pass {last.number}"):
                pass
            if last.counted:
                self._worker.uncount(last)
            return last.undo_all

        return lambda: last.undo(parameters)

    def _enqueue(
        self,
        layout: Layout,
        buffer: torch.Tensor,
        read_scale: Callable[[], float],
        *,
        last: bool,
        placed: bool,
    ) -> "tuple[torch.futures.Future[torch.Tensor], Step]":
        step = self._last
        assert step is not None
        if placed:
            self._mark(layout)
        self._submitted.append(layout)
        step.asked += layout.compressed
        future = self._worker.submit(step, layout, buffer, last=last, read_scale=read_scale)
        return future, step

    def _mark(self, layout: Layout) -> None:
        """Record what is in the ``.grad`` of a bucket's parameters, or will be."""
        if self._applying is not None:
            origins = self._applying.tracker
            origins.exchanged(layout.compressed, GradSource.SENT)
            origins.exchanged((piece.parameter for piece in layout.dense), GradSource.AVERAGED)

    def _scale(self) -> Callable[[], float]:
        """Return what reads the loss scale of this pass."""
        if self._grad_scaler is None:
            return _one
        # Not get_scale(), which waits for the device.
        kept = getattr(self._grad_scaler, "_scale", None)
        if isinstance(kept, torch.Tensor):
            return backends.backend_for(kept).number(kept)
        scale = self._grad_scaler.get_scale()
        return lambda: scale

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
        layouts = [self._layouts.of(tensors, buffer) for tensors, buffer in buckets]
        ending = None if self._worker.ends_apart else layouts[-1]
        waiting = [
            self._enqueue(layout, buffer, _one, last=layout is ending, placed=True)
            for layout, (_, buffer) in zip(layouts, buckets, strict=True)
        ]
        if self._worker.ends_apart:
            self.end()
        for future, _ in waiting:
            future.wait()
        for _, step in waiting[:1]:
            if step.error is not None:
                raise fresh(step.error)

    # What the handle calls --------------------------------------------------------------------

    def discard(self, control: ControlChannel) -> None:
        """Undo the last backward pass. A collective."""
        self.check_unbroken()
        self._worker.flush()
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
    def paused(self, control: ControlChannel) -> Iterator[None]:
        """Stand aside in this block. A collective at entry."""
        self.check_unbroken()
        with control.act("paused()"):
            pass
        if self._applying is not None:
            self._applying.claim.excuse()
        self._pauses += 1
        try:
            yield
        finally:
            self._pauses -= 1

    def check_unbroken(self) -> None:
        """Raise what broke the exchange, if anything did."""
        if self._worker.broken is not None:
            raise fresh(self._worker.broken)


def _nothing() -> None:
    """Undo nothing."""


def _one() -> float:
    """Return the scale of a loss that is not scaled."""
    return 1.0
