"""The attachment of a codec to parameters: what runs while it lasts, and how it ends."""

import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Protocol, Self

from gradwire.torch.engine.assignment import Codecs
from gradwire.torch.engine.backward import AutoControl, BackwardPasses
from gradwire.torch.engine.connection import Connection
from gradwire.torch.engine.layout import Layouts
from gradwire.torch.engine.local_gradients import exchange_held, used_anywhere
from gradwire.torch.engine.optimizer_link import OptimizerLink
from gradwire.torch.engine.options import Options
from gradwire.torch.engine.parameter import ParameterSlot
from gradwire.torch.engine.pipeline import ExchangePipeline
from gradwire.torch.engine.resources import Resources
from gradwire.torch.engine.scheduler import Scheduler
from gradwire.torch.transport import Transport

__all__ = ["Attached", "GradientSource"]

_PATIENCE = timedelta(seconds=5)


class GradientSource(Protocol):
    """Where gradients come in: a hook of DDP, or an optimizer."""

    def register(self) -> None:
        """Take the place where gradients come in, and leave them alone until `open`.

        Raises
        ------
        ValueError
            It is taken.
        """

    def open(self, passes: BackwardPasses, holder: object) -> None:
        """Give gradients to these passes from now on, and keep the holder until `close`.

        Sets how they average without a codec: `BackwardPasses.dense`.
        """

    def close(self) -> None:
        """Give them gradients no longer."""

    def transport(self, ranks: Any, timeout: timedelta | None) -> Transport:
        """Return what connects other ranks than before, and average over them where it averages.

        Parameters
        ----------
        ranks : object
            What stands for the ranks: a process group of torch.distributed, for example.
        timeout : datetime.timedelta, optional
            Of all collectives; None for that of the given ranks.

        Raises
        ------
        ValueError
            The model is not replicated on these ranks.
        """


class Attached:
    """The worker, exchange and channels of one attachment, from its start to `detach`."""

    def __init__(
        self,
        options: Options,
        parameters: Sequence[ParameterSlot],
        scheduler: Scheduler,
        connection: Connection,
        connect: Callable[[Transport], Connection],
        *,
        entry: GradientSource,
        whole: bool,
        applying: OptimizerLink | None,
        joining: Callable[[], bool],
        decide: Callable[..., AutoControl] | None,
    ) -> None:
        self.codec: Codecs = options.assignment.given
        self._options = options
        self._parameters = {parameter.name: parameter for parameter in parameters}
        self._scheduler = scheduler
        self._connect = connect
        self._entry: GradientSource | None = entry
        self._whole = whole
        self._applying = applying
        self._joining = joining
        self._decide = decide
        self._begin(connection, entry)
        if applying is not None:
            applying.connect(self._exchange_held)
            # An optimizer may have this handle, which nothing would release then.
            weakref.finalize(self, applying.releaser()).atexit = False

    def _begin(self, connection: Connection, entry: GradientSource) -> None:
        """Exchange over this connection from now on."""
        exchange, scaled = connection.exchange, self._options.scaled
        place = self._place = connection.place
        self.world_size = place.size
        self.rank = place.rank
        self._scheduler.measures = place.measures
        self._between = connection.between
        self._exchange = exchange
        self._control = connection.control
        self._worker = ExchangePipeline(
            exchange, scaled=scaled, whole=self._whole, confirm=connection.confirm
        )
        divided = place if connection.divides else None
        layouts = Layouts(list(self._parameters.values()), divided)
        self._tallies = layouts.tallies
        self._passes = BackwardPasses(
            self._worker,
            exchange,
            layouts,
            self._scheduler,
            self._options.grad_scaler if scaled else None,
            applying=self._applying,
            joining=self._joining,
            control=connection.control,
        )
        self._resources = Resources(self._worker, connection)
        self._finalizer = weakref.finalize(self, self._resources.abandon)
        self._deciding = self._passes.auto = (
            None
            if self._decide is None
            else self._decide(
                self._parameters,
                self._scheduler,
                self._passes,
                connection.control,
                self._applying,
                place.nodes,
                connection.between,
            )
        )
        entry.open(self._passes, self)

    def __repr__(self) -> str:
        state = (
            "detached" if self._entry is None else "broken" if self._worker.broken else "attached"
        )
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
        return self._entry is not None

    @property
    def error(self) -> BaseException | None:
        """The last error, including errors that a loss scaler handled."""
        return self._worker.broken or self._worker.last_error

    def detach(self, timeout: timedelta = _PATIENCE, *, moments: bool = True) -> None:
        """Return to plain averages. Call it on every rank, between steps.

        What is left in the residuals is never sent; `state_dict` still returns it. Calling
        `detach` twice has no effect. `attach` may be called again. ``with attach(...) as handle:``
        detaches at the end of the block.

        Parameters
        ----------
        timeout : datetime.timedelta
            How long to wait for the other ranks, so that none is cut off while it still reads. A
            rank that leaves its training loop by an exception passes the exception on after this
            time; the other ranks then get an `ExchangeError` from their backward pass. A broken
            handle does not wait.
        moments : bool
            Let the optimizer go on with the second moments that the codec kept: the ranks average
            theirs, which takes as long as a dense step. False where no training follows; the same
            on all ranks.

        Raises
        ------
        ExchangeError
            A rank was lost while they did.
        """
        if self._entry is None:
            return
        self._entry.close()
        self._entry = None
        self._finalizer.detach()
        last = None
        if self._applying is not None:
            self._applying.release()
            last = self._applying.give_all_back() if moments else None
        self._resources.leave(timeout, last)

    def accept_changes(self) -> None:
        """Take no notice of what was done to ``.grad`` since the last pass, for a trainer."""
        if self._applying is not None:
            self._applying.watch()

    def _check_attached(self, otherwise: str) -> None:
        if self._entry is None:
            raise ValueError(f"this handle is detached: {otherwise}")

    # What an optimizer asks -------------------------------------------------------------------

    def _exchange_held(self) -> None:
        """Exchange the gradients that are in ``.grad``. A collective."""
        if self._options.scaled:
            raise ValueError(
                "with grad_scaler=, gradients must be exchanged in a backward pass, or the ranks "
                "would not skip the same steps: run the last pass before step() without no_sync() "
                "and paused(), or train in bfloat16 without a scaler"
            )
        self._passes.check_unbroken()
        self._worker.settle()
        parameters = list(self._parameters.values())
        with self._control.act("step()") as channel:
            used = used_anywhere(channel, parameters)
        exchange_held(self._passes, used)

    def _compressed(self) -> dict[str, ParameterSlot]:
        return {
            name: parameter
            for name, parameter in self._parameters.items()
            if parameter.state is not None
        }
