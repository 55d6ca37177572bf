"""Where an optimizer gets its gradients: hooks that exchange them, bucket by bucket."""

import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch

from gradwire.torch.auto import AutoController, Automatic
from gradwire.torch.engine.backward import BackwardPasses
from gradwire.torch.engine.handle import Handle
from gradwire.torch.engine.local_gradients import FlatGradients
from gradwire.torch.engine.sharding import laid_out
from gradwire.torch.engine.step import Step
from gradwire.torch.errors import ExchangeError, UpdateError, fresh, kind_of
from gradwire.torch.horovod.automatic import AutomaticExchange
from gradwire.torch.horovod.dense_average import PlainAverage
from gradwire.torch.horovod.grad_changes import GradChangeDetector, raise_changed
from gradwire.torch.horovod.hooks import Hooks
from gradwire.torch.horovod.readiness import BucketReadiness
from gradwire.torch.transport import Transport
from gradwire.torch.transport.horovod import HorovodChannel, HorovodTransport

__all__ = ["HorovodSource"]


@dataclass(slots=True)
class _Exchanged:
    """What is in progress, and how its result gets into ``.grad``."""

    wait: Callable[[], Any]
    write: Callable[[Any], None]
    watch: GradChangeDetector


class HorovodSource:
    """The gradients of an optimizer.

    Parameters
    ----------
    named : mapping of str to torch.Tensor
    buckets : sequence of sequence of torch.Tensor
        In the order of exchange, which all ranks share.
    transport : HorovodTransport
        Makes the channel for plain averages.
    passes_per_step : int
        Backward passes before gradients are exchanged.
    sums : bool
        Gradients are summed, not averaged.
    predivide : float
        ``gradient_predivide_factor``, of averages without the codec.
    sparse_as_dense : bool
        Exchange sparse gradients as dense ones.
    choices : Automatic or None
        What to decide on while the model trains.
    """

    def __init__(
        self,
        named: Mapping[str, torch.Tensor],
        buckets: Sequence[Sequence[torch.Tensor]],
        transport: HorovodTransport,
        *,
        passes_per_step: int,
        sums: bool,
        predivide: float,
        sparse_as_dense: bool,
        choices: Automatic | None = None,
    ) -> None:
        self._names = {id(each): name for name, each in named.items()}
        self._buckets = [list(bucket) for bucket in buckets]
        self._transport = transport
        self._sums = sums
        self._predivide = predivide
        self._sparse_as_dense = sparse_as_dense
        self._choices = choices
        self._auto: AutomaticExchange | None = None
        self.passes_per_step = passes_per_step
        self._plain: HorovodChannel | None = None
        self._passes: BackwardPasses | None = None
        self._holder: object = None
        self._hooks = Hooks(self._names, self.arrived)
        self._lock = threading.RLock()  # autograd has a thread for each device
        self._turn: BucketReadiness | None = None
        self._flying: list[_Exchanged] = []
        self._aside = False
        self._step: Step | None = None
        self._flats: dict[int, FlatGradients] = {}
        self._is_sparse: dict[int, bool] = {}
        self._told = False  # that a pass has come too early
        self.synchronized = False

    # What the reducer calls -------------------------------------------------------------------

    def register(self) -> None:
        """Make the channel for plain averages.

        Raises
        ------
        ValueError
            Another distributed optimizer exchanges the gradient of one of these parameters.
        """
        self._hooks.check()
        self._plain = self._transport.make()

    def open(self, passes: BackwardPasses, holder: object) -> None:
        """Exchange gradients from now on."""
        self._passes, self._holder = passes, holder
        if self._choices is not None:
            assert isinstance(holder, Handle)  # which has what decisions change
            pilot = holder.decide(functools.partial(AutoController, self._choices))
            self._auto = AutomaticExchange(passes, pilot, self._plainly)
        # Now, not earlier: the hooks that tell where gradients come from must run before these.
        for bucket in self._buckets:
            for each in bucket:
                self._hooks.place(each)
        self._hooks.active = True

    def close(self) -> None:
        """Average gradients plainly from now on."""
        self._passes = self._holder = None
        if self._auto is not None:
            self._auto.close()
            self._auto = None
        self._hooks.active = False

    def transport(self, ranks: Any, timeout: timedelta | None) -> Transport:
        """Raise a ValueError: Horovod forms its groups anew for all that use them."""
        raise ValueError(
            "the ranks of Horovod change by hvd.elastic: keep the optimizer in its state, whose "
            "reset attaches the codec again"
        )

    def remove(self) -> None:
        """Leave gradients alone from now on."""
        self._hooks.remove()

    # What the optimizer calls -----------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether the ranks are still connected as they were."""
        return self._plain is not None and self._plain.is_open

    @property
    def begun(self) -> bool:
        """Whether gradients are being exchanged, or are about to be."""
        return bool(self._flying) or (self._turn is not None and self._turn.begun)

    def synchronize(self) -> None:
        """Exchange what is not under way yet, wait, and write averages to ``.grad``.

        Raises
        ------
        GradientError, ExchangeError, UpdateError, UndoError
            As `gradwire.torch.ddp.attach` describes; ``.grad`` is then unusable.
        """
        with self._lock:
            if self.synchronized:
                return
            turn = self._turn = self._turn or self._new_turn()
            try:
                for bucket, last in turn.due(all_of_them=True):
                    self._submit(bucket, last=last)
                changed = self._finish()
            finally:
                told, self._told = self._told, False
                self._turn, self._step = None, None
                self._flying.clear()
            self.synchronized = True
        if changed is not None and not told:
            raise_changed(self._name_of(changed))

    def forget(self, act: str) -> None:
        """Forget the gradients that have come so far, for this act.

        Raises
        ------
        UpdateError
            They are being exchanged.
        """
        with self._lock:
            if self.begun:
                raise UpdateError(
                    f"{act} while gradients are being exchanged: call optimizer.step() or "
                    "optimizer.synchronize() first, also for a pass that you throw away"
                )
            self._turn = None

    # What autograd calls ----------------------------------------------------------------------

    def arrived(self, parameter: torch.Tensor) -> None:
        """Take note of a gradient, and submit the buckets that are due."""
        with self._lock:
            self.synchronized = False
            if self._turn is None:
                self._turn = self._new_turn()
            try:
                self._turn.arrive(parameter)
            except UpdateError:
                self._told = True
                raise
            try:
                for bucket, last in self._turn.due():
                    if self._waits(self._turn):
                        break
                    self._submit(bucket, last=last)
            except RuntimeError:
                if not self._flying:
                    self._turn = None  # nothing is under way: it can be cleared
                raise

    # How a bucket is exchanged ----------------------------------------------------------------

    def _new_turn(self) -> BucketReadiness:
        return BucketReadiness(self._buckets, self.passes_per_step, self._name_of)

    def _name_of(self, parameter: torch.Tensor) -> str:
        return self._names[id(parameter)]

    def _waits(self, turn: BucketReadiness) -> bool:
        """Tell whether a turn must not begin before `synchronize`."""
        if self._auto is None or self._flying:
            return False
        assert self._passes is not None  # it is open
        return not self._passes.are_paused and self._auto.waits(turn)

    def _begin(self) -> None:
        """Decide how this turn is exchanged."""
        passes = self._passes
        self._aside = passes is None or passes.are_paused
        if passes is None:
            return
        if passes.broken is not None:
            raise _stopped(passes.broken)
        self._aside = self._aside or passes.are_stale()
        auto, turn = self._auto, self._turn
        if self._aside:
            if auto is not None:
                auto.interrupt()
            return
        assert turn is not None  # of which this is the first bucket
        refusal = passes.begin() if auto is None else auto.begin(turn)
        if refusal is not None:
            raise refusal

    def _submit(self, bucket: Sequence[torch.Tensor], *, last: bool) -> None:
        if not self._flying:
            self._begin()
        sparse = [each for each in bucket if self._check_kind(each)]
        dense = [each for each in bucket if not self._is_sparse[id(each)]]
        if dense:
            self._submit_dense(dense, last=last and not sparse)
        for each in sparse:
            self._submit_sparse(each, last=last and each is sparse[-1])

    def _submit_dense(self, tensors: Sequence[torch.Tensor], *, last: bool) -> None:
        key = id(tensors[0])
        flat = self._flats.get(key)
        if flat is None or list(map(id, flat.tensors)) != list(map(id, tensors)):
            flat = self._flats[key] = FlatGradients(tensors, list(map(laid_out, tensors)))
        flat.read()
        watch = GradChangeDetector(tensors)
        wait, factor = self._exchange(tensors, flat.buffer, last=last)
        self._flying.append(_Exchanged(wait, functools.partial(_write, flat, factor), watch))

    def _submit_sparse(self, tensor: torch.Tensor, *, last: bool) -> None:
        gradient = _empty(tensor) if tensor.grad is None else tensor.grad.clone()
        watch = GradChangeDetector([tensor])
        wait, factor = self._exchange([tensor], gradient, last=last)

        def write(result: torch.Tensor) -> None:
            tensor.grad = result if factor == 1.0 else result * factor

        self._flying.append(_Exchanged(wait, write, watch))

    def _exchange(
        self, tensors: Sequence[torch.Tensor], buffer: torch.Tensor, *, last: bool
    ) -> tuple[Callable[[], Any], float]:
        """Start to exchange a buffer; return what waits for the result, and a factor of that."""
        passes = self._passes
        if self._aside:
            if passes is not None:
                passes.averaged(tensors)
            return self._plainly(buffer).wait, 1.0
        assert passes is not None
        if self._auto is not None:
            wait, step = self._auto.exchange(tensors, buffer, last=last)
            if step is None:  # plainly
                return wait, 1.0
        else:
            future, step = passes.submit(tensors, buffer, last=last)
            wait = future.wait
        self._step = step
        assert self._plain is not None  # after register()
        return wait, float(self._plain.size) if self._sums else 1.0

    def _plainly(self, buffer: torch.Tensor) -> PlainAverage:
        """Start to combine a buffer as Horovod's own optimizer does."""
        assert self._plain is not None  # after register()
        return PlainAverage(self._plain, buffer, sums=self._sums, predivide=self._predivide)

    def _finish(self) -> torch.Tensor | None:
        """Wait for all buckets, and write their averages; raise why they do not count.

        Returns a parameter whose gradient was changed in the meantime.
        """
        results = [each.wait() for each in self._flying]
        changed = [found for each in self._flying if (found := each.watch.changed()) is not None]
        for each, result in zip(self._flying, results, strict=True):
            each.write(result)
        if not self._aside and self._passes is not None and self._step is not None:
            error = self._passes.ending()(self._step)
            if error is not None:
                raise error
        return changed[0] if changed else None

    def _check_kind(self, tensor: torch.Tensor) -> bool:
        """Tell whether a gradient is exchanged as a sparse one, as it was before."""
        gradient = tensor.grad
        known = self._is_sparse.get(id(tensor))
        if gradient is None or self._sparse_as_dense:
            return self._is_sparse.setdefault(id(tensor), False)
        found = gradient.is_sparse
        if known is not None and known != found:
            raise ExchangeError(
                f"the gradient of {self._name_of(tensor)!r} is {'' if found else 'not '}sparse, "
                "unlike in earlier passes, where it may have been missing: pass "
                "sparse_as_dense=True"
            )
        self._is_sparse[id(tensor)] = found
        return found


def _write(flat: FlatGradients, factor: float, result: torch.Tensor) -> None:
    del result  # it is the buffer
    flat.write(factor)


def _empty(tensor: torch.Tensor) -> torch.Tensor:
    """Return the gradient of an embedding that was not used, as a sparse tensor."""
    places = torch.empty(1, 0, dtype=torch.int64, device=tensor.device)
    values = tensor.new_empty(0, *tensor.shape[1:])
    return torch.sparse_coo_tensor(places, values, tensor.shape, check_invariants=False)


def _stopped(first: BaseException) -> BaseException:
    error = kind_of(first)(
        f"gradwire stopped after an earlier error: {first}", getattr(first, "rank", None)
    )
    error.__cause__ = fresh(first)
    return error
