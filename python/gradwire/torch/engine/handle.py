"""The handle that `attach` returns: steps, epochs, checkpoints, reports and detaching."""

import contextlib
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, Self

from gradwire import _validate
from gradwire.torch.engine.backward import BackwardPasses
from gradwire.torch.engine.bucket_contents import BucketContentsCache
from gradwire.torch.engine.config import Codecs, Options
from gradwire.torch.engine.engine import Engine
from gradwire.torch.engine.optimizer_link import OptimizerLinks
from gradwire.torch.engine.parameter import ParameterSlot
from gradwire.torch.engine.scheduler import Scheduler
from gradwire.torch.engine.sharding import shard_of
from gradwire.torch.transport import Transport

if TYPE_CHECKING:
    from gradwire.report import Report
    from gradwire.torch.checkpoint.format import Policy
    from gradwire.torch.checkpoint.reshard import Resharded

_PATIENCE = timedelta(seconds=5)


class GradientSource(Protocol):
    """Where gradients enter: a hook of DDP, or an optimizer."""

    def register(self) -> None:
        """Register with the framework; raise a ValueError if another hook is registered.

        Gradients are left alone until `open`.
        """

    def open(self, passes: BackwardPasses, holder: object) -> None:
        """Pass gradients to these passes from now on, and keep the holder alive until `close`.

        Sets their uncompressed average: `BackwardPasses.dense`.
        """

    def close(self) -> None:
        """Stop passing gradients to them."""

    def transport(self, ranks: Any, timeout: timedelta | None) -> Transport:
        """Return the transport between the ranks of this object, and average over them from now on.

        Raises a ValueError if the model is not replicated on them.
        """


class Handle:
    """Controls the compression of one DDP model; returned by `attach`.

    Attributes
    ----------
    codec : gradwire.Codec, dict or list
        The codec passed to `attach`, or the codecs by patterns of names, or of each optimizer.
    world_size, rank : int
        Size of the process group, and this process's rank in it.
    """

    def __init__(
        self,
        options: Options,
        parameters: Sequence[ParameterSlot],
        scheduler: Scheduler,
        engine: Engine,
        connect: Callable[[Transport], Engine],
        *,
        source: GradientSource,
        links: OptimizerLinks,
        joining: Callable[[], bool],
        decide: Callable[..., Any] | None = None,
    ) -> None:
        self.codec: Codecs = options.assignment.request
        self._options = options
        self._parameters = {slot.name: slot for slot in parameters}
        self._scheduler = scheduler
        self._connect = connect
        self._source: GradientSource | None = source
        self._links = links
        self._joining = joining
        self._decide = decide
        self._begin(engine, source)
        links.connect(self._exchange_local)
        # An optimizer may hold this handle, and nothing would release it.
        weakref.finalize(self, links.releaser()).atexit = False

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a handle belongs to its model and process, and cannot be saved or copied: save "
            "handle.state_dict(), and give it to load_state_dict() of the handle that attach() "
            "returns next time"
        )

    def _begin(self, engine: Engine, source: GradientSource) -> None:
        self._engine, self._pipeline = engine, engine.pipeline
        place = self._place = engine.place
        self.world_size, self.rank = place.size, place.rank
        self._scheduler.measures = place.measures
        cache = BucketContentsCache(
            list(self._parameters.values()), place if engine.divides else None
        )
        self._counters = cache.counters
        self._passes = BackwardPasses(
            engine,
            cache,
            self._scheduler,
            self._options.grad_scaler if self._options.scaled else None,
            links=self._links,
            joining=self._joining,
        )
        if self._decide is not None:
            self._passes.auto = self._decide(
                self._parameters,
                self._scheduler,
                self._passes,
                engine,
                self._links,
                self._joining,
            )
        source.open(self._passes, self)

    def __repr__(self) -> str:
        state = "broken" if self._pipeline.broken else "attached"
        state = state if self.attached else "detached"
        return f"<gradwire.torch.Handle: {self.codec!r}, {state}, step {self.step}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.detach(moments=raised[0] is None)

    @property
    def step(self) -> int:
        """Backward passes exchanged and not rolled back, including those before a resume."""
        return self._passes.step

    @property
    def ranks_per_node(self) -> int:
        """Ranks that divide each gradient in a hierarchy; 1 without one."""
        return self._place.shares

    @property
    def attached(self) -> bool:
        """Whether `detach` has not been called."""
        return self._source is not None

    @property
    def error(self) -> BaseException | None:
        """The last `GradientError` or `ExchangeError`, including one that a loss scaler handled."""
        return self._pipeline.broken or self._pipeline.last_error

    def epoch(self, epoch: int, lr: float | None = None) -> None:
        """Begin an epoch and advance the schedule. A collective: call it between steps.

        Call it on every rank with 0, 1, 2 and so on at the start of each epoch; after a resume,
        continue with the saved epoch. Residuals are kept through every change. Until the first
        call, 100 steps count as an epoch, and the first such epoch ends with a RuntimeWarning.

        Parameters
        ----------
        epoch : int
            The epoch that begins; not lower than the one before.
        lr : float, optional
            Learning rate of the epoch. `gradwire.schedule.Accordion` treats a lower rate than in
            the previous epoch as a critical regime, so leave it out if it decreases every epoch.

        Raises
        ------
        ValueError
            The epoch is lower than the current one, the ranks disagree, or the handle is detached.
            Nothing changes then.
        ExchangeError
            Another rank called something else, or did not call within the timeout.
        """
        self._check_attached("attach() again to begin an epoch")
        self._pipeline.flush()
        self._passes.undo_unapplied()
        self._scheduler.advance(epoch, lr, self._engine.control)
        self._passes.forget()

    def discard(self) -> None:
        """Undo the last exchanged backward pass. A collective: call it on every rank.

        Use it if the gradients will not be applied. Residuals, momentum, observed frame sizes, the
        measurements of a schedule and the step count return, bit for bit, to what they were before
        that pass. The gradients in ``.grad`` are not touched.

        If that pass was already rolled back, by an error or for a loss scaler, or was `paused`,
        there is nothing to undo and the call has no effect.

        Raises
        ------
        ValueError
            There was no backward pass since `attach`, `epoch`, `load_state_dict` or the last
            `discard`, the ranks disagree on the step, or the handle is detached. Nothing changes
            then.
        ExchangeError
            Another rank called something else, or did not call within the timeout; or the handle
            is broken.
        """
        self._check_attached("there is nothing to discard")
        self._passes.discard()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Exchange the backward passes in this block by plain all-reduce. A collective at entry.

        For passes whose gradients are not for this model's optimizer, such as a GAN generator's
        pass through its discriminator. Residuals are neither sent nor updated, and the pass does
        not count as a step. DDP behaves as without gradwire, so a non-finite gradient is no error.
        If an attached AdamW, Adam, SGD or Muon of torch makes a step with such gradients, it
        exchanges them first, if the codec sends updates or applies momentum.

        Do not enter or leave the block during a backward pass, or use it inside DDP's ``join()``,
        where ranks without inputs could not follow.

        Raises
        ------
        ValueError
            The handle is detached.
        ExchangeError
            Another rank called something else, or did not call within the timeout; or the handle
            is broken.
        """
        self._check_attached("there is nothing to pause")
        with self._passes.paused():
            yield

    # Checkpoints ------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's residuals and everything else needed to resume bit for bit.

        Call it between steps on every rank, and save all of the results: each rank has its own
        residual. It holds tensors and text only, so ``torch.load(weights_only=True)`` can read it.
        All keys contain the rank, so `torch.distributed.checkpoint` does not take the entries of
        different ranks for replicas.

        Returns
        -------
        dict
            One entry, ``rank0`` on rank 0, with ``residual``, ``momentum``, with
            `gradwire.memory.AdamCorrection` ``second_moment``, and ``measured`` (the sums of
            `gradwire.schedule.Accordion`, on rank 0 or its node): dicts from names of compressed
            parameters to float32 tensors of their shapes, if the codec has them; and ``about``:
            JSON with version, rank, world size, step, codec, schedule, and the remaining state of
            each parameter.

        """
        from gradwire.torch.checkpoint.load import save

        self._pipeline.flush()
        self._passes.undo_unapplied()
        return save(
            self._compressed(),
            self._options.assignment.get_config(),
            self._place,
            self.step,
            self._scheduler,
        )

    def gathered_state_dict(self, rank: int | None = 0) -> dict[str, Any]:
        """Return the `state_dict` of all ranks in one dict, for a file that one rank writes.

        A collective: call it between steps. The receiving rank needs memory for the residuals of
        all ranks.

        Parameters
        ----------
        rank : int, optional
            Rank in the process group that receives the dict; None for all ranks. The same on
            every rank.

        Returns
        -------
        dict
            One entry per rank; empty on ranks other than the receiving one.
            Pass it to `load_state_dict` on every rank.

        Raises
        ------
        ValueError
            The handle is detached, or there is no such rank.
        ExchangeError
            Another rank called something else, or did not call within the timeout.
        """
        from gradwire.torch.checkpoint.gather import gather

        self._check_attached("save each rank's state_dict()")
        if rank is not None:
            rank = _validate.integer("rank", rank, low=0, high=self.world_size - 1)
        mine = self.state_dict()
        with self._engine.control.act(f"gathered_state_dict({rank})") as channel:
            return gather(mine, channel, rank)

    def merged_state_dict(self, state_dict: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return one state with the residuals of all ranks added up. A collective.

        It needs no more memory than the state of a rank, and `load_state_dict` with
        ``sum-and-split``, on any number of ranks and with any hierarchy, gives each of them its
        share: what all residuals hold together is conserved, what each rank held is not.

        Parameters
        ----------
        state_dict : dict, optional
            This rank's own state, as of an earlier step; a rank may have none and pass an empty
            dict. The present one by default.

        Returns
        -------
        dict
            The same on every rank; empty if no rank has a state.

        Raises
        ------
        ValueError
            A state is damaged or not that of one rank, they are of different steps or models, the
            ranks of a node divide gradients, or the handle is detached.
        ExchangeError
            Another rank called something else, or did not call within the timeout.
        """
        from gradwire.torch.checkpoint.gather import merge

        self._check_attached("save each rank's state_dict()")
        if self._place.shares > 1:
            raise ValueError("with a hierarchy, save gathered_state_dict() or each rank's state")
        mine = self.state_dict() if state_dict is None else state_dict
        shapes = {name: slot.shape for name, slot in self._compressed().items()}
        with self._engine.control.act("merged_state_dict()") as channel:
            return merge(channel, mine, shapes)

    def resharded(
        self,
        world_size: int,
        policy: "Policy" = "sum-and-split",
        *,
        ranks_per_node: int | None = None,
    ) -> "Resharded":
        """Return an object for `torch.distributed.checkpoint` to load another world size's save.

        Pass it instead of the handle: ``load({"gradwire": handle.resharded(8)}, ...)`` loads what
        8 ranks saved by ``save({"gradwire": handle}, ...)``.

        Parameters
        ----------
        world_size : int
            Number of ranks that saved.
        policy : {"sum-and-split", "keep", "drop"}
            As in `load_state_dict`.
        ranks_per_node : int, optional
            That of the run that saved, if it had a hierarchy with another one than this run; 1 if
            it had none. Consecutive ranks were one node.
        """
        from gradwire.torch.checkpoint.reshard import Resharded

        size = _validate.integer("world_size", world_size, low=1)
        shares = self._place.shares
        if ranks_per_node is not None:
            shares = _validate.integer("ranks_per_node", ranks_per_node, low=1, high=size)
        if size % shares:
            raise ValueError(f"{size} ranks cannot have been nodes of {shares} ranks each")
        return Resharded(self, size, policy, shares)

    def shapes_of(self, share: int, shares: int) -> dict[str, tuple[int, ...]]:
        """Return the shape of each parameter's state on a rank with this share."""
        return {
            name: shard_of(name, slot.tensor, share, shares).shape
            for name, slot in self._compressed().items()
        }

    def load_state_dict(
        self,
        state_dict: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None,
        policy: "Policy" = "sum-and-split",
    ) -> None:
        """Restore what `state_dict` returned. A collective: call it on every rank.

        Parameters
        ----------
        state_dict : dict, list of dict or None
            This rank's own state, or the states of all old ranks: as a list in any order, or as
            returned by `gathered_state_dict`. None only with ``keep`` or ``drop``.
        policy : {"sum-and-split", "keep", "drop", "own"}
            What to do if the number of ranks has changed. ``sum-and-split`` sums the residuals of
            all old ranks (so it needs all states) and gives every rank an equal share; momentum
            (`gradwire.memory.MomentumCorrection`) is averaged. ``keep`` restores the residual of
            each old rank that still exists; new ranks start without. ``drop`` starts without
            residuals. ``own`` restores what each rank passes, its own state or None, whatever its
            rank and step were: for ranks that go on after a failure, under other numbers; the
            highest step counts. Second moments (`gradwire.memory.AdamCorrection`) are averaged with
            each of them, over the states that any rank was given.

        Raises
        ------
        ValueError
            On every rank, if any rank was given something that is not such a dict or does not fit
            the model, the codec, its rank or the policy, or if the ranks were given different
            steps. Nothing changes then on any rank. Also if the handle is detached.
        ExchangeError
            Another rank called something else, or did not call within the timeout.
        """
        from gradwire.torch.checkpoint.load import load

        self._check_attached("load into the handle of the next attach()")
        self._pipeline.flush()
        with self._engine.control.act("load_state_dict()") as channel:
            step = load(
                self._compressed(),
                self._scheduler,
                self._place,
                channel,
                self._engine.peers or channel,
                state_dict,
                policy,
            )
        self._passes.restart(step)

    # Other ranks ------------------------------------------------------------------------------

    def regroup(self, ranks: Any = None, timeout: timedelta | None = None) -> None:
        """Continue with other ranks: without those that failed, or with new ones. A collective.

        Call it on every rank of the new group; a rank that is new calls `attach` instead and then
        ``load_state_dict(None, policy="own")``. A broken handle works again. Residuals stay on
        their ranks, those of lost ranks are lost, and size limits and the report start again. All
        parameters, buffers and the optimizer must be equal on all ranks, as after `attach`: if a
        rank failed in the middle of a step, some of the others may have applied that step.

        Parameters
        ----------
        ranks : object
            The new ranks: with DDP a `torch.distributed.ProcessGroup`, the group that the model was
            given by ``model._update_process_group(group)`` before; with Horovod a process set.
        timeout : datetime.timedelta, optional
            As in `attach`.

        Raises
        ------
        ValueError
            The handle is detached, the model has other ranks, or the ranks disagree as in `attach`.
            Nothing changes then.
        ExchangeError
            The new ranks could not be connected.
        """
        self._check_attached("attach() to the new group")
        if self._place.shares > 1:
            raise ValueError(
                "regroup() cannot change the ranks per node: save gathered_state_dict(), detach(), "
                "and attach() and load_state_dict() in the new group"
            )
        assert self._source is not None  # it is attached
        saved = self.state_dict()
        engine = self._connect(self._source.transport(ranks, timeout))
        self._engine.abandon()
        for slot in self._compressed().values():
            slot.limit.reset()
        self._begin(engine, self._source)
        self.load_state_dict(saved, policy="own")

    # Figures ----------------------------------------------------------------------------------

    def metrics(self, *, reset: bool = False) -> dict[str, float]:
        """Return the inexpensive figures of `report`, for a logger.

        It reads no residual and has no figures per parameter, so it may be called in every step.
        Figures that are not available, yet or with this codec, are left out.

        Parameters
        ----------
        reset : bool
            Start counting from zero afterwards.

        Returns
        -------
        dict of str to float
            As the attributes of `Report`: ``step``, ``steps``, ``collectives``, ``wire_bytes``,
            ``dense_wire_bytes``, ``compression``, ``slot_use``, ``achieved``, ``encode_ms``,
            ``exchange_ms``, ``decode_ms`` and ``wait_ms``.
        """
        from gradwire.torch.engine.figures import figures

        self._pipeline.drain()
        times, ranks = self._engine.exchange.times, self._place.nodes
        values = figures(times, self._counters, ranks, self.step)
        if reset:
            self._reset_metrics()
        return {name: float(value) for name, value in values.items() if value is not None}

    def report(self, *, reset: bool = False, residuals: bool = True) -> "Report":
        """Return a report of what this rank sent, saved and spent: print it, or write its page.

        Every residual is read once to compute its norm: about ten milliseconds for 25 million
        entries. Any thread may call this, also during training.

        Parameters
        ----------
        reset : bool
            Start counting from zero afterwards.
        residuals : bool
            Compute the norms of the residuals. If False, all norms are None.
        """
        from gradwire.torch.engine.figures import build_report

        auto, slots = self._passes.auto, self._parameters.values()
        # In the sending thread: it would fail on a state that another thread is reading.
        report = self._pipeline.run_in_sender(
            lambda: build_report(
                self.codec,
                slots,
                self._place,
                self._engine.exchange.times,
                self._counters,
                self._engine.carried_by,
                self.step,
                exchange=", ".join(map(repr, self._engine.parts)),
                residuals=residuals,
                decision=self._options.idle(slots, self._place) if auto is None else auto.reason,
                schedule=self._scheduler.place,
            )
        )
        if reset:
            self._reset_metrics()
        return report

    def _reset_metrics(self) -> None:
        """Start all running sums from zero, except the count of steps."""
        self._engine.exchange.times.clear()
        self._counters.clear()

    # The end --------------------------------------------------------------------------------

    def detach(self, timeout: timedelta = _PATIENCE, *, moments: bool = True) -> None:
        """Return to uncompressed averages. Call it on every rank, between steps.

        Values left in the residuals are never sent; `state_dict` still returns it. Calling `detach`
        twice has no effect. `attach` may be called again. ``with attach(...) as handle:`` detaches
        at the end of the block.

        Parameters
        ----------
        timeout : datetime.timedelta
            How long to wait for the other ranks, so that none is cut off while it is still
            receiving. A rank that leaves its training loop by an exception passes the exception on
            after this time; the other ranks then get an `ExchangeError` from their backward pass. A
            broken handle does not wait.
        moments : bool
            Let the optimizer continue with the second moments that the codec kept: the ranks
            average them, which takes as long as a dense step. False where no training follows;
            the same on all ranks.

        Raises
        ------
        ExchangeError
            A rank was lost during that.
        """
        _validate.timeout(timeout, optional=False)
        if self._source is None:
            return
        self._source.close()
        self._source = None
        self._links.releaser()()
        self._engine.leave(timeout, self._links.give_all_back() if moments else None)

    def _check_attached(self, otherwise: str) -> None:
        if self._source is None:
            raise ValueError(f"this handle is detached: {otherwise}")

    def _exchange_local(self, of: str) -> None:
        """Exchange the gradients in ``.grad``, for the step of an optimizer. A collective."""
        from gradwire.torch.engine.local_gradients import exchange_local

        if self._options.scaled:
            raise ValueError(
                "with grad_scaler=, gradients must be exchanged in a backward pass, or the ranks "
                "would not skip the same steps: run the last pass before step() without no_sync() "
                "and paused(), or train in bfloat16 without a scaler"
            )
        self._passes.check_unbroken()
        self._pipeline.flush()
        parameters = self._parameters.values()
        exchange_local(self._passes.exchange, self._engine.control, parameters, of)

    def _compressed(self) -> dict[str, ParameterSlot]:
        return {name: slot for name, slot in self._parameters.items() if slot.has_state}
