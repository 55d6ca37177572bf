"""The source of an optimizer's gradients: hooks that exchange them, bucket by bucket."""

import gc
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch

from gradwire import _validate
from gradwire.torch.engine.backward import Average, BackwardPasses
from gradwire.torch.engine.config import Options
from gradwire.torch.engine.local_gradients import FlatGradients
from gradwire.torch.engine.sharding import laid_out
from gradwire.torch.errors import ExchangeError, UpdateError
from gradwire.torch.transport import Transport, Work
from gradwire.torch.transport.horovod import HorovodChannel, HorovodTransport, library

BUCKET = 25 << 20  # bytes without ``groups=``: one is encoded while the one before is exchanged


def form(named: Mapping[str, torch.Tensor], groups: int | None) -> list[list[torch.Tensor]]:
    """Return the parameters in buckets of one dtype and device each, in the order of exchange.

    That is the order in which gradients become ready: the last parameter comes first. ``groups`` is
    the number of groups, as in Horovod; by default, buckets of up to 25 MiB.
    """
    every = list(named.values())
    groups_of_tensors: list[list[torch.Tensor]] = []
    if groups is not None:
        length = -(-len(every) // _validate.integer("groups", groups, low=1))
        groups_of_tensors = [every[at : at + length] for at in range(0, len(every), length)][::-1]
    else:
        room = 0
        for tensor in reversed(every):
            if not groups_of_tensors or room < tensor.nbytes:
                groups_of_tensors.append([])
                room = BUCKET
            groups_of_tensors[-1].insert(0, tensor)
            room -= tensor.nbytes
    alike: dict[tuple[int, torch.dtype, torch.device], list[torch.Tensor]] = {}
    for at, group in enumerate(groups_of_tensors):
        for tensor in group:
            alike.setdefault((at, tensor.dtype, tensor.device), []).append(tensor)
    return list(alike.values())


class BucketReadiness:
    """Tracks which gradients and buckets are ready, over one or more backward passes.

    Buckets are due in their own order, which all ranks share, whatever the order in which gradients
    arrive, which may differ between ranks. A gradient is complete after ``passes`` backward passes.
    """

    def __init__(
        self,
        buckets: Sequence[Sequence[torch.Tensor]],
        passes: int,
        name_of: Callable[[torch.Tensor], str],
    ) -> None:
        active = [[tensor for tensor in bucket if tensor.requires_grad] for bucket in buckets]
        self.buckets = [bucket for bucket in active if bucket]
        self._passes = passes
        self._name_of = name_of
        self._counts: dict[int, int] = {}
        self._bucket_of = {
            id(tensor): index for index, bucket in enumerate(self.buckets) for tensor in bucket
        }
        self._missing = [len(bucket) for bucket in self.buckets]
        self._next = 0

    @property
    def begun(self) -> bool:
        """Whether some gradient is complete, or a bucket was taken."""
        return self._next > 0 or self._passes in self._counts.values()

    def arrive(self, parameter: torch.Tensor) -> None:
        """Record that a backward pass added to a gradient; raise an UpdateError if it must not."""
        key = id(parameter)
        count = self._counts.get(key, 0) + 1
        if count > self._passes:
            raise UpdateError(
                f"the gradient of {self._name_of(parameter)!r} was computed more than "
                f"backward_passes_per_step={self._passes} times before step() or synchronize(): "
                "call one of them, or pass the number of passes that you accumulate. With a loss "
                "scaler, call synchronize() before scaler.step()"
            )
        if key not in self._bucket_of:
            raise UpdateError(
                f"{self._name_of(parameter)!r} was unfrozen between two backward passes of one "
                "step: change requires_grad after step()"
            )
        self._counts[key] = count
        if count == self._passes:
            self._missing[self._bucket_of[key]] -= 1

    def due(self, *, all_of_them: bool = False) -> Iterator[tuple[list[torch.Tensor], bool]]:
        """Yield each bucket that is due once, and whether it is the last one of the exchange.

        A bucket with a missing gradient is due only if all buckets are requested.
        """
        while self._next < len(self.buckets) and (all_of_them or not self._missing[self._next]):
            at = self._next
            yield self.buckets[at], at + 1 == len(self.buckets)
            self._next = at + 1  # not if it could not be submitted: it fails again


@dataclass(frozen=True, kw_only=True, eq=False)
class Settings:
    """The options for attaching the codec, now or again after Horovod has lost a rank."""

    named: dict[str, torch.nn.Parameter]
    buckets: list[list[torch.Tensor]]  # in the order of exchange, which all ranks share
    options: Options
    passes_per_step: int
    op: Any
    sparse_as_dense: bool
    process_set: Any
    timeout: timedelta | None


class HorovodAverage:
    """The average of a buffer, or its sum, in progress."""

    def __init__(self, work: Work, buffer: torch.Tensor) -> None:
        self._work = work
        self._buffer = buffer

    def wait(self) -> torch.Tensor:
        """Wait for it, and return the buffer."""
        self._work.wait()
        return self._buffer


@dataclass(slots=True)
class _ExchangedBucket:
    """A bucket in progress, of several gradients or of one sparse gradient, where `flat` is None.

    `factor` makes the average what is written to ``.grad``.
    """

    tensors: Sequence[torch.Tensor]
    versions: list[tuple[int, int] | None]
    average: Average
    flat: FlatGradients | None
    factor: float

    def changed(self) -> torch.Tensor | None:
        """Return a parameter whose gradient was changed since it was read, as by clipping.

        The average would overwrite that change unnoticed. Changes by a loss scaler are not
        detected.
        """
        pairs = zip(self.tensors, self.versions, strict=True)
        return next((tensor for tensor, known in pairs if _version(tensor) != known), None)

    def write(self, average: torch.Tensor) -> None:
        """Write the result to ``.grad``."""
        if self.flat is not None:
            self.flat.write(self.factor)
        else:
            self.tensors[0].grad = average if self.factor == 1.0 else average * self.factor


_hooked: "weakref.WeakSet[HorovodSource]" = weakref.WeakSet()  # those with hooks, in this process


class HorovodSource:
    """The gradients of an optimizer, exchanged as its settings say."""

    def __init__(self, settings: Settings, transport: HorovodTransport) -> None:
        self._names = {id(tensor): name for name, tensor in settings.named.items()}
        self._settings = settings
        self._transport = transport
        self.passes_per_step = settings.passes_per_step
        self._sums = bool(settings.op == library.Sum)
        self._channel: HorovodChannel  # for uncompressed averages alone, from register() on
        self._passes: BackwardPasses | None = None
        self._holder: object = None
        self._hooks: list[Any] = []
        self._lock = threading.RLock()  # autograd has a thread for each device
        self._turn: BucketReadiness | None = None
        self._flying: list[_ExchangedBucket] = []
        self._flats: dict[int, FlatGradients] = {}
        self._is_sparse: dict[int, bool] = {}
        self._told = False  # that a pass has come too early
        self.synchronized = False

    # What the reducer calls -------------------------------------------------------------------

    def register(self) -> None:
        """Create the channel for uncompressed averages; raise if another source has the parameters.

        Hooks of one that is detached are removed.
        """
        if self._others():
            gc.collect()  # an optimizer that nobody has any more may not be gone yet
        for other in self._others():
            if other._passes is not None:
                name = next(name for key, name in self._names.items() if key in other._names)
                raise ValueError(
                    f"{name!r} belongs to another distributed optimizer, which exchanges its "
                    "gradient: detach() the handle of that one first"
                )
            other.remove()
        self._channel = self._transport.make()

    def open(self, passes: BackwardPasses, holder: object) -> None:
        """Exchange gradients from now on."""
        self._passes, self._holder, passes.dense = passes, holder, self._dense
        arrived = weakref.WeakMethod(self.arrived)  # a hook does not keep this object alive

        def hook(parameter: torch.Tensor) -> None:
            call = arrived()
            if call is not None:
                call(parameter)

        # Now, not earlier: the hooks that tell where gradients come from must run before these.
        for bucket in self._settings.buckets:
            for tensor in bucket:
                required = tensor.requires_grad
                tensor.requires_grad_(True)  # a frozen parameter takes no hooks, but keeps them
                made = tensor.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
                tensor.requires_grad_(required)
                self._hooks.append(made)
        _hooked.add(self)

    def close(self) -> None:
        """Average gradients uncompressed from now on."""
        self._passes = self._holder = None

    def transport(self, ranks: Any, timeout: timedelta | None) -> Transport:
        """Raise a ValueError: Horovod re-creates its groups for all their users at once."""
        raise ValueError(
            "hvd.elastic changes the ranks of Horovod: keep the optimizer in its state, whose "
            "reset attaches the codec again"
        )

    def remove(self) -> None:
        """Stop intercepting gradients."""
        _hooked.discard(self)
        while self._hooks:
            self._hooks.pop().remove()

    def _others(self) -> "list[HorovodSource]":
        """Return the sources of other optimizers that have some of these parameters."""
        every = (source for source in _hooked if source is not self)
        return [source for source in every if self._names.keys() & source._names.keys()]

    # What the optimizer calls -----------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether the ranks are still connected."""
        return self._channel.is_open

    @property
    def begun(self) -> bool:
        """Whether gradients are being exchanged, or are about to be."""
        return bool(self._flying) or (self._turn is not None and self._turn.begun)

    def synchronize(self) -> None:
        """Exchange the remaining gradients, wait, and write averages to ``.grad``.

        It raises what `gradwire.torch.ddp.attach` describes; ``.grad`` is then unusable.
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
                was_early, self._told = self._told, False
                self._turn = None
                self._flying.clear()
            self.synchronized = True
        if changed is not None and not was_early:
            raise UpdateError(
                f"the gradient of {self._name_of(changed)!r} was changed while it was being "
                "exchanged, for example clipped, and the average has replaced it: call "
                "optimizer.synchronize() before, and step() within optimizer.skip_synchronize(). "
                "Call zero_grad() now to drop this pass"
            )

    def forget(self, act: str) -> None:
        """Forget the gradients that arrived; raise an UpdateError if they are being exchanged."""
        with self._lock:
            if self.begun:
                raise UpdateError(
                    f"{act} while gradients are being exchanged: call optimizer.step() or "
                    "optimizer.synchronize() first, even for a pass that you discard"
                )
            self._turn = None

    # What autograd calls ----------------------------------------------------------------------

    def arrived(self, parameter: torch.Tensor) -> None:
        """Record a gradient, and submit the buckets that are due."""
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
                    self._submit(bucket, last=last)
            except RuntimeError:
                if not self._flying:
                    self._turn = None  # nothing is under way: it can be cleared
                raise

    # How a bucket is exchanged ----------------------------------------------------------------

    def _new_turn(self) -> BucketReadiness:
        return BucketReadiness(self._settings.buckets, self.passes_per_step, self._name_of)

    def _name_of(self, parameter: torch.Tensor) -> str:
        return self._names[id(parameter)]

    def _dense(self, buffer: torch.Tensor, *, half: bool = False) -> HorovodAverage:
        """Start to average a buffer, sparse or not, in place: see `dense_average`."""
        assert not half  # only "auto" asks for that
        start = self._channel.all_reduce if self._sums else self._channel.average
        return HorovodAverage(start(buffer), buffer)

    def _submit(self, bucket: Sequence[torch.Tensor], *, last: bool) -> None:
        if not self._flying and self._passes is not None:
            self._passes.begin()
            if self._passes.refusal is not None:
                raise self._passes.refusal
        sparse = [tensor for tensor in bucket if self._check_kind(tensor)]
        dense = [tensor for tensor in bucket if not self._is_sparse[id(tensor)]]
        if dense:
            flat = self._flats.get(id(dense[0]))
            if flat is None or list(map(id, flat.tensors)) != list(map(id, dense)):
                flat = FlatGradients(dense, list(map(laid_out, dense)))
                self._flats[id(dense[0])] = flat
            flat.read()
            self._start(dense, flat.buffer, flat, last=last and not sparse)
        for tensor in sparse:
            gradient = _empty(tensor) if tensor.grad is None else tensor.grad.clone()
            self._start([tensor], gradient, None, last=last and tensor is sparse[-1])

    def _start(
        self,
        tensors: Sequence[torch.Tensor],
        buffer: torch.Tensor,
        flat: FlatGradients | None,
        *,
        last: bool,
    ) -> None:
        """Start to exchange a buffer: a flat one, or one sparse gradient."""
        versions = [_version(tensor) for tensor in tensors]
        average: Average
        if self._passes is None:
            average = self._dense(buffer)
        else:
            average = self._passes.average(tensors, buffer, last=last)
        # What goes without the codec is a sum already.
        sums = self._sums and not isinstance(average, HorovodAverage)
        factor = float(self._channel.size) if sums else 1.0
        self._flying.append(_ExchangedBucket(tensors, versions, average, flat, factor))

    def _finish(self) -> torch.Tensor | None:
        """Wait for all buckets, and write their averages; raise the error if they do not count.

        Returns a parameter whose gradient was changed in the meantime.
        """
        results = [bucket.average.wait() for bucket in self._flying]
        changed = [tensor for bucket in self._flying if (tensor := bucket.changed()) is not None]
        for bucket, result in zip(self._flying, results, strict=True):
            bucket.write(result)
        ending = self._passes.ending() if self._flying and self._passes is not None else None
        error = None if ending is None else ending()
        if error is not None:
            raise error
        return changed[0] if changed else None

    def _check_kind(self, tensor: torch.Tensor) -> bool:
        """Tell whether a gradient is exchanged as a sparse one, as it was before."""
        gradient = tensor.grad
        known = self._is_sparse.get(id(tensor))
        if gradient is None or self._settings.sparse_as_dense:
            return self._is_sparse.setdefault(id(tensor), False)
        is_sparse = gradient.is_sparse
        if known is not None and known != is_sparse:
            raise ExchangeError(
                f"the gradient of {self._name_of(tensor)!r} is {'' if is_sparse else 'not '}"
                "sparse, unlike in earlier passes, where it may have been missing: pass "
                "sparse_as_dense=True"
            )
        self._is_sparse[id(tensor)] = is_sparse
        return is_sparse


def _version(tensor: torch.Tensor) -> tuple[int, int] | None:
    gradient = tensor.grad
    return None if gradient is None else (id(gradient), int(gradient._version))


def _empty(tensor: torch.Tensor) -> torch.Tensor:
    """Return the gradient of an embedding that was not used, as a sparse tensor."""
    places = torch.empty(1, 0, dtype=torch.int64, device=tensor.device)
    values = tensor.new_empty(0, *tensor.shape[1:])
    return torch.sparse_coo_tensor(places, values, tensor.shape, check_invariants=False)
