"""Backward passes: how their buckets are averaged, and whether a pass counts or is undone."""

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist

from gradwire.torch import backends
from gradwire.torch.engine.bucket_contents import BucketContents, BucketContentsCache
from gradwire.torch.engine.config import GradScaler
from gradwire.torch.engine.consensus import agree
from gradwire.torch.engine.engine import Engine
from gradwire.torch.engine.optimizer_link import OptimizerLinks
from gradwire.torch.engine.parameter import ParameterSlot
from gradwire.torch.engine.pipeline import ExchangePipeline, broken_by
from gradwire.torch.engine.scheduler import Scheduler
from gradwire.torch.engine.step import Step
from gradwire.torch.errors import (
    ExchangeError,
    GradientError,
    UpdateError,
    fresh,
    kind_of,
)


class Average(Protocol):
    """The average of a bucket, in progress."""

    def wait(self) -> torch.Tensor:
        """Wait for it, and return the buffer with it."""


def dense_average(
    group: dist.ProcessGroup,
    buffer: torch.Tensor,
    *,
    half: bool = False,
    divide_sum: bool = False,
) -> "torch.futures.Future[torch.Tensor]":
    """Start to average a buffer, sparse or not, in place over a process group.

    With ``half``, a dense buffer in float32 is sent as bfloat16, as in torch's
    ``bf16_compress_hook``. ``divide_sum`` divides
    the sum, as FSDP does; otherwise the buffer is multiplied before summing, as DDP does.
    """
    ranks, sent = group.size(), buffer
    half = half and buffer.dtype == torch.float32 and buffer.layout == torch.strided
    if half:
        sent = torch.mul(buffer, 1.0 / ranks, out=torch.empty_like(buffer, dtype=torch.bfloat16))
    elif not divide_sum:
        sent = buffer.mul_(1.0 / ranks) if buffer.layout == torch.strided else buffer.div_(ranks)
    work = dist.all_reduce(sent, group=group, async_op=True)
    assert work is not None  # with async_op

    def done(future: "torch.futures.Future[list[torch.Tensor]]") -> torch.Tensor:
        value = future.value()[0]
        if half:
            value = buffer.copy_(value)
        elif divide_sum:
            value.div_(ranks)
        return value

    average: torch.futures.Future[torch.Tensor] = work.get_future().then(done)
    return average


class BackwardPasses:
    """The passes of one attachment, one after another, each of any number of buckets.

    A framework calls `begin` before the first bucket of a pass, `average` with each bucket, and
    finally raises the error that `ending` or `end` returns, if any. A pass is exchanged with the
    codec, averaged uncompressed, or refused, in which case nothing is exchanged. ``grad_scaler`` is
    the loss scaler in use, if any; ``joining`` tells whether the model is inside `join`, where
    ranks without inputs take part.
    """

    # How the framework averages a buffer without a codec, in place; see `dense_average`.
    dense: Callable[..., Average]

    def __init__(
        self,
        engine: Engine,
        cache: BucketContentsCache,
        scheduler: Scheduler,
        grad_scaler: GradScaler | None,
        *,
        links: OptimizerLinks,
        joining: Callable[[], bool],
    ) -> None:
        self._pipeline = engine.pipeline
        self._control = engine.control
        self._exchange = engine.exchange
        self._cache = cache
        self._scheduler = scheduler
        self._grad_scaler = grad_scaler
        self._links = links
        self._joining = joining
        self._steps_before = 0
        # How often states were loaded, which invalidates what was recorded of earlier steps.
        self.restarts = 0
        self.refusal: BaseException | None = None  # of the pass that has begun
        self.stands_aside = False  # the pass is paused, and averaged uncompressed
        self.auto: Any = None  # an `AutoController`, which decides whether passes go by the codec
        self._codes = True  # the pass that has begun does
        self.last: Step | None = None  # if it can be discarded
        self._submitted: list[BucketContents] = []  # in the last pass
        self._unplaced: list[torch.Tensor] = []  # averaged densely in it, and not in .grad yet
        self._pauses = 0
        self._paused = False  # as the last pass began
        self._read_scale: Callable[[], float] | None = None

    @property
    def step(self) -> int:
        """Backward passes exchanged and not rolled back, including those before a resume."""
        return self._steps_before + self._exchange.times.steps_ever

    def restart(self, step: int) -> None:
        """Continue from a checkpoint of this step, on all ranks, after the pipeline was flushed."""
        self._steps_before = step - self._exchange.times.steps_ever
        self.restarts += 1
        self._pipeline.restart()
        self.forget()
        self._links.last = None
        self._links.forgive()

    def forget(self) -> None:
        """Drop buckets' contents and the last pass: call it after a change of codecs or states."""
        self._cache.forget()
        self.last = None

    def undo_unapplied(self) -> None:
        """Undo what no optimizer has applied of the last pass.

        Call it after flushing the pipeline, when this process may end: no later pass could undo it.
        """
        last = self._links.last
        if last is None or not last.unapplied:
            return
        if len(last.unapplied) == len(self._links.each):
            self._pipeline.discard(last)
            return
        last.revoked |= last.unapplied  # others have applied their parts
        mine = [slot for link in last.unapplied for slot in link.own(last.encoded.values())]
        self._pipeline.run_in_sender(lambda: last.undo(mine, mine))

    # What gives gradients calls ---------------------------------------------------------------

    @property
    def ended(self) -> bool:
        """Whether the next bucket must belong to a new pass."""
        if self._paused != (self._pauses > 0):
            return True
        exchanged = self.refusal is None and bool(self._submitted)
        return exchanged and (self.last is None or self.last.finished)

    def begin(self, *, shadow: bool = False) -> None:
        """Begin a pass: decide whether it is exchanged, averaged uncompressed, or refused.

        Call it when the futures of the previous pass are resolved, whatever their outcome: by then
        the receiving thread has recorded whether that pass counts. ``shadow`` marks a pass of
        `join` on a rank without inputs, which does not change its ``.grad``.
        """
        self._submitted.clear()
        self._unplaced.clear()
        broken, self._paused = self._pipeline.broken, self._pauses > 0
        self.refusal = None if broken is None else _stopped(broken)
        self.stands_aside = broken is None and self._paused
        auto = self.auto
        self._codes = broken is None and not self._paused and (auto is None or auto.passed())
        if self._codes:
            try:
                self.refusal = self._begin(shadow=shadow)
            except Warning as error:  # which the program has for errors; all ranks have the same
                self.refusal = error
            if self._grad_scaler is not None:
                self._read_scale = self._scale(self._grad_scaler)
        elif self.refusal is None:
            self.last = Step(self.step, finished=True)  # for discard(): there is nothing to undo

    def average(
        self,
        tensors: Sequence[torch.Tensor],
        buffer: torch.Tensor,
        *,
        last: bool,
        placed: bool = True,
    ) -> Average:
        """Start to average a bucket of the pass; return a future, or the result of `dense`.

        The buffer holds the flat gradients of these parameters, concatenated, and receives the
        averages, or infinities if the pass is refused. ``last`` marks the last bucket of the pass.
        ``placed`` tells that the averages reach ``.grad`` of this rank; otherwise call `placed`
        later.
        """
        if self.refusal is not None:
            bucket = backends.backend_for(buffer).bucket(buffer)
            bucket.resolve(poisoned=True)
            return bucket.future
        if self._codes:
            contents = self._cache.of(tensors, buffer)
            return self._submit(contents, buffer, last=last, placed=placed)
        if placed:
            self.averaged(tensors)
        else:
            self._unplaced += tensors
        return self.dense(buffer, half=self._half and not self.stands_aside)

    @property
    def _half(self) -> bool:
        return self.auto is not None and bool(self.auto.half)

    def ending(self) -> Callable[[], BaseException | None] | None:
        """Return a function that returns the error of the complete pass; None if uncompressed.

        The function does not refer to this object: autograd may keep its callbacks for a while.
        """
        refusal = self.refusal
        if refusal is not None:
            return lambda: refusal
        if not self._submitted:
            return None
        assert self.last is not None  # begun
        return functools.partial(_verdict, self._pipeline, self._links, self.last)

    def end(self) -> BaseException | None:
        """End a pass that has no last bucket, resolve its futures, and return its error, if any."""
        ending = self.ending()
        if self.refusal is None and self._submitted:
            assert self.last is not None  # begun
            self._pipeline.end(self.last)
        return None if ending is None else ending()

    def placed(self) -> None:
        """Record that the averages of the pass have been copied to ``.grad``."""
        for contents in self._submitted:
            self._links.tracker.exchanged(contents)
        self._links.tracker.averaged(self._unplaced)
        self._links.watch()

    def averaged(self, parameters: Iterable[torch.Tensor]) -> None:
        """Record that ``.grad`` of these parameters holds, or will hold, uncompressed averages."""
        self._links.tracker.averaged(parameters)

    def arriving(self, parameters: Iterable[torch.Tensor]) -> None:
        """Record that local gradients are about to be added to ``.grad`` of these parameters."""
        self._links.tracker.arriving(parameters)

    def change(self, act: Callable[[], None]) -> BaseException | None:
        """Change codecs after a step, the same one on all ranks; return the error, if it failed.

        If the gradients of the last pass were dropped, its effect on the states is undone first.
        """
        try:
            self._pipeline.flush()
            if (undo := self._drop()) is not None:
                self._pipeline.run_in_sender(undo)
            if (last := self._links.last) is not None and last.finished:
                last.unapplied.clear()
            act()
        except UpdateError as error:
            return error
        except Exception as error:  # other ranks may have changed theirs
            self.last, self._pipeline.broken = None, broken_by(error, "gradwire could not decide")
            return self._pipeline.broken
        return None

    def _begin(self, *, shadow: bool = False) -> BaseException | None:
        links, self.last = self._links, None
        if not shadow and (refusal := links.refusal()) is not None:
            return refusal
        try:
            links.follow_momentum()
            undo = self._drop()
        except ExchangeError as error:
            self._pipeline.broken = error
            return error
        except (UpdateError, ValueError) as error:
            return error
        step = self.step
        if self._scheduler.is_due(step):
            self._advance(undo)
            undo = None
        rates = links.rates()

        def prepare() -> None:
            if undo is not None:
                undo()
            links.take_over()
            for read, parameters in rates:
                rate = read()
                for parameter in parameters:  # as `set_rate` does, without a call for each
                    parameter.rate = rate
                    parameter.state.learning_rate = rate / parameter.root

        unapplied = set(() if self._joining() else links.each)
        self.last = links.last = Step(
            step, prepare=prepare if links.each else None, unapplied=unapplied
        )
        return None

    def _advance(self, undo: Callable[[], None] | None) -> None:
        """Advance a schedule that counts steps, after the last pass is undone, if it must be."""
        self._pipeline.flush()
        if undo is not None:
            self._pipeline.run_in_sender(undo)
        try:
            self._scheduler.advance_to(self.step)
        finally:
            self.forget()

    def _drop(self) -> Callable[[], None] | None:
        """Uncount the last pass if its gradients were dropped; return a function that undoes it.

        Gradients that are still in ``.grad``, as at the start of an accumulation, are applied
        later. Raises an UpdateError if several passes in a row were dropped while something else
        has trained the model.
        """
        links = self._links
        for link in links.each:
            link.forget()
        last = links.last
        if last is None or not last.unapplied or last.error is not None or not last.finished:
            return None
        # If the program has cleared two of three parameters, these two are undone, and the third
        # one's gradient is applied by a later step.
        left = {slot.name for slot in links.tracker.holding(last.asked)}
        cleared: list[ParameterSlot] = []
        agreed: list[ParameterSlot] = []
        names: list[str] = []
        for link in (link for link in links.each if link in last.unapplied):
            mine = link.own(last.encoded.values())
            if gone := [slot for slot in mine if slot.name not in left]:
                link.check_undone()
                cleared += gone
                if link.name and gone == mine:
                    agreed += gone
                    names.append(link.name)
        whole = len(last.unapplied) == len(links.each) and last.asked and not left
        if whole or agreed:
            # Ranks that undid different passes would have slots of different sizes, which aborts
            # the process. So they meet first, but only if there is something to undo.
            of = "" if whole else ", ".join(names)
            with self._control.act(f"backward() with no step({of}) after pass {last.number}"):
                pass
        if not whole:
            return functools.partial(last.undo, cleared, agreed)
        if last.counted:
            self._pipeline.uncount(last)
        return last.undo_all

    def _submit(
        self, contents: BucketContents, buffer: torch.Tensor, *, last: bool, placed: bool = True
    ) -> "torch.futures.Future[torch.Tensor]":
        step = self.last
        assert step is not None
        if placed:
            self._links.tracker.exchanged(contents)
        self._submitted.append(contents)
        step.asked += contents.compressed
        scale = self._read_scale
        return self._pipeline.submit(step, contents, buffer, last=last, read_scale=scale)

    def _scale(self, grad_scaler: GradScaler) -> Callable[[], float]:
        """Return a function that reads the loss scale of this pass."""
        # Not get_scale(), which waits for the device.
        scale = getattr(grad_scaler, "_scale", None)
        if isinstance(scale, torch.Tensor):
            return backends.backend_for(scale).number(scale)
        return functools.partial(float, grad_scaler.get_scale())

    # What the optimizer calls -----------------------------------------------------------------

    def exchange(self, buckets: Sequence[tuple[Sequence[torch.Tensor], torch.Tensor]]) -> None:
        """Exchange flat buffers of gradients, each with its parameters, as one separate pass.

        Raises the errors of a backward pass; a GradientError even with a loss scaler.
        """
        self.check_unbroken()
        self._submitted.clear()
        if self.auto is not None and not self.auto.passed():
            averages = [self.dense(buffer, half=self._half) for _, buffer in buckets]
            for (tensors, _), average in zip(buckets, averages, strict=True):
                average.wait()
                self.averaged(tensors)
            return
        self._read_scale = None
        refusal = self._begin()
        if refusal is not None:
            raise refusal
        every = [self._cache.of(tensors, buffer) for tensors, buffer in buckets]
        ending = None if self._pipeline.ends_apart else every[-1]
        futures = [
            self._submit(contents, buffer, last=contents is ending)
            for contents, (_, buffer) in zip(every, buckets, strict=True)
        ]
        step = self.last
        assert step is not None  # begun
        if self._pipeline.ends_apart:
            self._pipeline.end(step)
        for future in futures:
            future.wait()
        if step.error is not None:
            raise fresh(step.error)

    # What the handle calls --------------------------------------------------------------------

    def discard(self) -> None:
        """Undo the last backward pass. A collective."""
        self.check_unbroken()
        self._pipeline.flush()
        step = self.last
        known = None if step is None else step.number
        with self._control.act("discard()") as channel:
            agree(channel, "discarded", {"step": self.step, "last backward pass": known})
        if step is None:
            raise ValueError(
                "there is no step to discard: discard() undoes the last backward pass only, and "
                "none was exchanged since attach(), epoch(), load_state_dict() or discard()"
            )
        self._pipeline.discard(step)
        self.last = None
        self._links.forgive()
        step.unapplied.clear()  # nothing is left to undo

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Average uncompressed in this block. A collective at entry."""
        self.check_unbroken()
        with self._control.act("paused()"):
            pass
        self._links.forgive()
        self._pauses += 1
        try:
            yield
        finally:
            self._pauses -= 1

    def check_unbroken(self) -> None:
        """Raise the error that broke the exchange, if any."""
        if self._pipeline.broken is not None:
            raise fresh(self._pipeline.broken)


def _verdict(pipeline: ExchangePipeline, links: OptimizerLinks, step: Step) -> BaseException | None:
    error = pipeline.verdict(step)
    if links.defers and isinstance(error, GradientError):
        return None  # the optimizer's step raises it
    if error is None:
        links.watch()
    return error


def _stopped(first: BaseException) -> ExchangeError:
    text, rank = f"gradwire stopped after an earlier error: {first}", getattr(first, "rank", None)
    error = kind_of(first)(text, rank)
    error.__cause__ = fresh(first)
    return error
