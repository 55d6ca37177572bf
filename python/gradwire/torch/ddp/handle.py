"""What `attach` returns: reports, checkpoints, and the way back to plain DDP."""

import contextlib
import functools
import math
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol, Self

import torch
from torch.distributed import GradBucket  # type: ignore[attr-defined]  # it is there, unlisted

from gradwire import _validate
from gradwire.torch.ddp import checkpoint
from gradwire.torch.ddp.agreement import agree
from gradwire.torch.ddp.checkpoint import Policy
from gradwire.torch.ddp.control import Control
from gradwire.torch.ddp.errors import ExchangeError, fresh
from gradwire.torch.ddp.exchange import Exchange
from gradwire.torch.ddp.gathering import Resharded, gather
from gradwire.torch.ddp.groups import Groups
from gradwire.torch.ddp.hook import Switch, in_backward, raise_after_backward
from gradwire.torch.ddp.jobs import Job, Step, spoil
from gradwire.torch.ddp.layout import Layouts, Parameter
from gradwire.torch.ddp.report import ParameterReport, Report, StepTimes, Tally
from gradwire.torch.ddp.scheduling import Scheduler
from gradwire.torch.ddp.worker import Worker

if TYPE_CHECKING:
    from gradwire.codec import Codec

__all__ = ["GradScaler", "Handle"]

_PATIENCE = timedelta(seconds=5)


class GradScaler(Protocol):
    """The part of `torch.amp.GradScaler` that is used."""

    def get_scale(self) -> float:
        """Return the factor on the loss."""

    def is_enabled(self) -> bool:
        """Tell whether the loss is scaled, and bad steps skipped."""


class Handle:
    """Compression of one DDP model; made by `attach`.

    Attributes
    ----------
    codec : gradwire.Codec
    world_size, rank : int
        Of the process group.
    step : int
        Backward passes exchanged, over resumes. Those that were rolled back do not count.
    error : BaseException or None
        The last `GradientError` or `ExchangeError`, also one that a loss scaler took care of.
    """

    def __init__(
        self,
        switch: Switch,
        codec: "Codec",
        parameters: Sequence[Parameter],
        exchange: Exchange,
        scheduler: Scheduler,
        groups: Groups,
        control: Control,
        *,
        grad_scaler: GradScaler | None,
        whole: bool,
    ) -> None:
        self.codec = codec
        self.world_size = exchange.world_size
        self.rank = exchange.rank
        self._parameters = {parameter.name: parameter for parameter in parameters}
        self._layouts = Layouts(parameters)
        self._switch: Switch | None = switch
        scaled = grad_scaler is not None and grad_scaler.is_enabled()
        self._grad_scaler = grad_scaler if scaled else None
        self._exchange = exchange
        self._scheduler = scheduler
        self._whole = whole
        self._worker = Worker(self._exchange, hold=scaled, whole=whole)
        self._steps_before = 0
        self._step: Step | None = None
        self._next_index = 0
        self._pauses = 0
        self._scale = 1.0
        self._groups = groups
        self._control = control
        self._finalizer = weakref.finalize(self, _abandon, self._worker, exchange, groups, control)

    def __repr__(self) -> str:
        state = (
            "detached" if self._switch is None else "broken" if self._worker.broken else "attached"
        )
        return f"<gradwire.torch.ddp.Handle: {self.codec!r}, {state}, step {self.step}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.detach()

    @property
    def step(self) -> int:
        """Backward passes exchanged, over resumes; those that were rolled back do not count."""
        return self._steps_before + self._exchange.times.steps_ever

    @property
    def error(self) -> BaseException | None:
        """The last error, also one that a loss scaler took care of."""
        return self._worker.broken or self._worker.last_error

    # What the hook calls ----------------------------------------------------------------------

    def _stands_aside(self) -> bool:
        """Tell whether DDP has to average by itself, which is then the last backward pass."""
        if not self._pauses or self._worker.broken is not None:
            return False
        self._step = Step(self.step, finished=True)  # for discard(): there is nothing to undo
        return True

    def _submit(self, bucket: GradBucket) -> "torch.futures.Future[torch.Tensor]":
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        buffer, index = bucket.buffer(), bucket.index()
        if self._worker.broken is not None:
            error = ExchangeError(f"gradwire is broken since: {self._worker.broken}")
            if not in_backward():
                raise error
            # Not raised here: DDP would be left half-way through its backward pass for ever.
            if self._ends(bucket):
                raise_after_backward(lambda: error)
            future.set_result(spoil(buffer))
            return future
        layout = self._layouts.of(bucket.parameters(), buffer)
        if self._step is None or self._step.finished or index < self._next_index or index == 0:
            # The same on all ranks: DDP has waited for all buckets of the step before, whatever
            # became of them, so the receiving thread has counted it where it counts.
            self._step = Step(self.step)
            self._scale = 1.0 if self._grad_scaler is None else self._grad_scaler.get_scale()
        self._next_index = index + 1
        step = self._step
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

    # What users call --------------------------------------------------------------------------

    def epoch(self, epoch: int, lr: float | None = None) -> None:
        """Begin an epoch: the schedule moves on. A collective, between steps, on every rank.

        Call it with 0, 1, 2 and so on where the loop over epochs begins; after a resume go on with
        the epoch that was saved. Whatever changes, what has not been sent is kept.

        Parameters
        ----------
        epoch : int
            The one that begins; not before the one that is under way.
        lr : float, optional
            Its learning rate. `gradwire.schedule.Accordion` takes a lower one than that of the
            epoch before for a critical regime, so leave it out if it falls in every epoch.

        Raises
        ------
        ValueError
            An epoch before this one, or ranks that disagree; nothing changes then.
        ExchangeError
            Another rank does something else, or nothing for as long as the timeout.
        """
        self._check_attached("it has no more epochs")
        self._worker.settle()
        self._scheduler.advance(epoch, lr, self._control)
        self._layouts.forget()
        self._step = None

    def discard(self) -> None:
        """Undo the last backward pass that was exchanged. A collective: call it on every rank.

        For a program that does not apply its gradients. What they had put into the residuals is
        taken out, and what was sent comes back: residuals, momentum, sizes seen, what a schedule
        measures and the count of steps are, bit for bit, what they were before that pass. The
        gradients in ``.grad`` are not touched.

        If that pass was rolled back already, by an error or for a loss scaler, or was `paused`,
        there is nothing left of it, and nothing happens.

        Raises
        ------
        ValueError
            There was no backward pass since `attach`, `epoch`, `load_state_dict` or the last
            `discard`, or ranks disagree on the step; nothing changes then.
        ExchangeError
            Another rank does something else, or nothing for as long as the timeout; or the handle
            is broken.
        """
        self._check_attached("there is nothing to discard")
        if self._worker.broken is not None:
            raise fresh(self._worker.broken)
        self._worker.settle()
        step = self._step
        known = None if step is None else step.number
        with self._control.act("discard()") as group:
            agree(group, "discarded", {"step": self.step, "last backward pass": known})
        if step is None:
            raise ValueError(
                "there is no step to discard: discard() reaches back one backward pass, and not "
                "over attach(), epoch(), load_state_dict() or another discard()"
            )
        self._worker.discard(step)
        self._step = None

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Exchange the backward passes in this block by plain all-reduce. A collective at entry.

        For passes whose gradients are not for the optimizer of this model, as those of a GAN's
        generator through its discriminator: residuals are neither sent nor fed, and such a pass is
        no step. It is what DDP does without gradwire, so a gradient that is not finite is no error.

        Not to be entered or left within a backward pass, nor inside of DDP's ``join()``, where
        ranks without inputs could not follow.

        Raises
        ------
        ValueError
            The handle is detached.
        ExchangeError
            Another rank does something else, or nothing for as long as the timeout; or the handle
            is broken.
        """
        self._check_attached("nothing is left to pause")
        if self._worker.broken is not None:
            raise fresh(self._worker.broken)
        with self._control.act("paused()"):
            pass
        self._pauses += 1
        try:
            yield
        finally:
            self._pauses -= 1

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's residuals and all else that resuming bit for bit needs.

        Call it between steps, on every rank, and save every rank's: each has a residual of its
        own. Tensors and text only, so ``torch.load(weights_only=True)`` reads it. The rank is part
        of all names, so that `torch.distributed.checkpoint` takes no two of them for replicas.

        Returns
        -------
        dict
            One entry, ``rank0`` on rank 0, with ``residual``, ``momentum`` and ``measured`` (the
            sums of `gradwire.schedule.Accordion`, on rank 0): dicts from names of compressed
            parameters to float32 tensors of their shapes, as far as the codec has such; and
            ``about``: JSON with version, rank, world size, step, codec, schedule, and what
            else is known of each parameter.
        """
        self._worker.settle()
        return checkpoint.save(
            self._compressed(),
            self.codec,
            self.rank,
            self.world_size,
            self.step,
            self._scheduler,
        )

    def gathered_state_dict(self, rank: int | None = 0) -> dict[str, Any]:
        """Return the `state_dict` of all ranks in one dict, for a file that one rank writes.

        A collective, between steps. It takes memory for all residuals of all ranks.

        Parameters
        ----------
        rank : int, optional
            The rank of the process group that gets it; None for all of them.

        Returns
        -------
        dict
            An entry for each rank; empty on other ranks than the one asked for.
            `load_state_dict` takes it on every rank.
        """
        if self._switch is None:
            raise ValueError("this handle is detached: save each rank's state_dict()")
        if rank is not None:
            rank = _validate.integer("rank", rank, low=0, high=self.world_size - 1)
        mine = self.state_dict()
        with self._control.act("gathered_state_dict()") as group:
            return gather(mine, group, rank)

    def resharded(self, world_size: int, policy: Policy = "sum-and-split") -> Resharded:
        """Return what `torch.distributed.checkpoint` can load another number of ranks' save into.

        Use it in the handle's place: ``load({"gradwire": handle.resharded(8)}, ...)`` for what
        was saved by 8 ranks as ``save({"gradwire": handle}, ...)``.

        Parameters
        ----------
        world_size : int
            Ranks that have saved.
        policy : {"sum-and-split", "keep", "drop"}
            As in `load_state_dict`.
        """
        return Resharded(self, _validate.integer("world_size", world_size, low=1), policy)

    def load_state_dict(
        self,
        state_dict: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None,
        policy: Policy = "sum-and-split",
    ) -> None:
        """Take over what `state_dict` returned. A collective: call it on every rank.

        Parameters
        ----------
        state_dict : dict, list of dict or None
            This rank's own; or those of all old ranks, as a list in any order or as
            `gathered_state_dict` returned them.
        policy : {"sum-and-split", "keep", "drop"}
            For another world size than the saved one. ``sum-and-split`` adds up the residuals of
            all old ranks (so it needs the whole list) and gives every rank an equal share, and of
            momentum (`gradwire.memory.MomentumCorrection`) the average;
            ``keep`` gives each old rank that is still there its own and new ranks none;
            ``drop`` starts without residuals.

        Raises
        ------
        ValueError
            On every rank, if one of them was given what is no such dict, or does not fit the
            model, the codec, its rank or the policy, or if ranks were given different steps.
            Nothing changes then, on any of them.
        ExchangeError
            Another rank does something else, or nothing for as long as the timeout.
        """
        self._check_attached("load into the one of the next attach()")
        self._worker.settle()
        with self._control.act("load_state_dict()") as group:
            step = checkpoint.load(self._compressed(), self._scheduler, group, state_dict, policy)
        self._layouts.forget()
        self._steps_before = step - self._exchange.times.steps_ever
        self._worker.restart()
        self._step = None

    def metrics(self, *, reset: bool = False) -> dict[str, float]:
        """Return the figures of `report` that cost nothing to have, for a logger.

        It reads no residual and looks at no parameter by itself, so it may be called in each step.
        What makes no sense yet, or with this codec, is left out.

        Parameters
        ----------
        reset : bool
            Start counting anew afterwards.

        Returns
        -------
        dict of str to float
            As the attributes of `Report`: ``steps``, ``collectives``, ``wire_bytes``,
            ``dense_wire_bytes``, ``compression``, ``slot_use``, ``achieved``, ``encode_ms``,
            ``exchange_ms``, ``decode_ms`` and ``wait_ms``.
        """
        self._worker.drain()
        figures = self._figures()
        if reset:
            self._clear()
        return {name: float(value) for name, value in figures.items() if value is not None}

    def report(self, *, reset: bool = False, residuals: bool = True) -> Report:
        """Return what this rank sent, saved and spent; ``str()`` and ``.to_json()`` it.

        Every residual is read once for its norm: some ten milliseconds for 25 million entries.

        Parameters
        ----------
        reset : bool
            Start counting anew afterwards.
        residuals : bool
            Leave the residuals alone: then no norm is in the report.
        """
        self._worker.drain()
        tallies = self._layouts.tallies.all()
        norms = [_norm(each) if residuals else None for each in self._parameters.values()]
        known = [norm for norm in norms if norm is not None]
        report = Report(
            rank=self.rank,
            world_size=self.world_size,
            codec=repr(self.codec),
            **self._figures(),
            residual_norm=math.hypot(*known) if residuals else None,
            parameters=tuple(map(_describe, self._parameters.values(), tallies, norms)),
        )
        if reset:
            self._clear()
        return report

    def _figures(self) -> dict[str, Any]:
        """Return what a report says of all parameters together, but for their residuals."""
        times, sums = self._exchange.times, self._layouts.tallies.total()
        steps = max(times.steps, 1)
        wire = times.wire_bytes / steps
        dense = 2 * times.dense_bytes * (self.world_size - 1) / self.world_size / steps
        return {
            "steps": times.steps,
            "collectives": times.collectives,
            "wire_bytes": wire,
            "dense_wire_bytes": dense,
            "compression": dense / wire if wire else 1.0,
            "slot_use": sums.nbytes / max(times.slot_bytes, 1),
            "achieved": sums.count / sums.target if sums.target else None,
            **{f"{stage}_ms": 1e3 * total / steps for stage, total in times.seconds.items()},
        }

    def _clear(self) -> None:
        self._exchange.times = StepTimes(steps_ever=self._exchange.times.steps_ever)
        self._layouts.tallies.clear()

    def detach(self, timeout: timedelta = _PATIENCE) -> None:
        """Go back to DDP's plain averaged all-reduce. Call it on every rank, between steps.

        What is left in the residuals does not reach the model any more; `state_dict` still
        returns it. Calling it twice is harmless. `attach` may be called again. ``with
        attach(...) as handle:`` calls it at the end.

        Parameters
        ----------
        timeout : datetime.timedelta
            How long to wait for other ranks, so that nobody is cut off who still reads. A rank
            that left its loop by an exception goes on with it after this time; the others, in
            their backward pass, then get an `ExchangeError`. A broken handle waits for nobody.
        """
        if self._switch is None:
            return
        self._switch.handle = None
        self._switch = None
        self._finalizer.detach()
        deadline = time.monotonic() + timeout.total_seconds()
        if not self._worker.settle(timeout.total_seconds()):
            self._worker.give_up()
        if self._worker.broken is None:
            left = max(deadline - time.monotonic(), 0.1)
            self._control.leave("detach()", timedelta(seconds=left))
        _abandon(self._worker, self._exchange, self._groups, self._control)

    def _check_attached(self, otherwise: str) -> None:
        if self._switch is None:
            raise ValueError(f"this handle is detached: {otherwise}")

    def _compressed(self) -> dict[str, Parameter]:
        return {
            name: parameter
            for name, parameter in self._parameters.items()
            if parameter.state is not None
        }


def _raise_broken(step: Step, future: "torch.futures.Future[torch.Tensor]") -> torch.Tensor:
    """Let `join` end on a rank without inputs. After a GradientError the others may go on."""
    if isinstance(step.error, ExchangeError):
        raise fresh(step.error)
    return future.value()


def _abandon(worker: Worker, exchange: Exchange, groups: Groups, control: Control) -> None:
    """End the threads and leave the groups; waits for no other rank."""
    if worker.stop(1.0):
        exchange.close()
        groups.leave()
    del control  # its tensors outlive its group


def _norm(parameter: Parameter) -> float | None:
    norm: float | None = None if parameter.state is None else parameter.state.residual_norm
    return norm


def _describe(parameter: Parameter, tally: Tally, norm: float | None) -> ParameterReport:
    steps = max(tally.steps, 1)
    dense = parameter.numel * parameter.tensor.element_size()
    return ParameterReport(
        name=parameter.name,
        numel=parameter.numel,
        dense=not parameter.compressed,
        steps=tally.steps,
        bytes_per_step=tally.nbytes / steps,
        compression=dense * tally.steps / tally.nbytes if tally.nbytes else 1.0,
        achieved=tally.count / tally.target if tally.target else None,
        trimmed=tally.trimmed,
        encode_ms=1e-6 * tally.encode_ns / steps,
        decode_ms=1e-6 * tally.decode_ns / steps,
        residual_norm=norm,
    )
