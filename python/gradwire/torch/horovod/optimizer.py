"""Makes an optimizer distributed: the user's class with the methods of Horovod's."""

import contextlib
import dataclasses
import functools
import os
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from typing import Any

import torch
from torch.optim import Optimizer

from gradwire import _validate
from gradwire.schedule import Schedule
from gradwire.torch.engine.attach import attach_engine
from gradwire.torch.engine.config import Codecs, GradScaler, Options
from gradwire.torch.engine.consensus import checksum
from gradwire.torch.engine.handle import Handle
from gradwire.torch.engine.pairing import check_optimizer, default_codec
from gradwire.torch.engine.parameter import plain_names
from gradwire.torch.errors import UpdateError
from gradwire.torch.horovod.source import BUCKET, HorovodSource, Settings, form
from gradwire.torch.transport.horovod import HorovodTransport, check_initialized, library


def process_set_of(process_set: Any) -> Any:
    """Return the process set, by default of all ranks; raise if Horovod does not know it."""
    if process_set is None:
        return library.global_process_set
    if process_set.process_set_id is None:
        raise ValueError(
            f"Horovod does not know the {process_set}: pass it to hvd.init(process_sets=[...]), or "
            "to hvd.add_process_set()"
        )
    return process_set


class Distributed:
    """The base class of every optimizer made by `DistributedOptimizer`."""

    handle: Handle | None = None  # None on a rank outside of the process set, and in a copy
    wrapped_class: type[Optimizer]
    _entry: HorovodSource | None = None
    _settings: Any = None
    _skips = False

    @property
    def backward_passes_per_step(self) -> int:
        """Backward passes before gradients are exchanged."""
        return 1 if self._entry is None else self._entry.passes_per_step

    @backward_passes_per_step.setter
    def backward_passes_per_step(self, passes: int) -> None:
        if self._settings is None:  # Horovod's own sets it in an optimizer of a class of its own
            raise ValueError(
                "this optimizer is a copy, or gradwire has distributed it already and "
                "hvd.DistributedOptimizer would do so again: use one of the two"
            )
        self.set_backward_passes_per_step(passes)

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Change the number of backward passes before gradients are exchanged; between steps."""
        _validate.integer("backward_passes_per_step", passes, low=1)
        if self._entry is not None:
            self._entry.forget("set_backward_passes_per_step()")
            self._entry.passes_per_step = passes
        if self._settings is not None:
            self._settings = dataclasses.replace(self._settings, passes_per_step=passes)

    def synchronize(self) -> None:
        """Wait until ``.grad`` holds averages. A collective.

        Exchanges what the backward passes did not: a parameter without a gradient has zeros, as
        with Horovod. For clipping, and before a loss scaler's ``unscale_()`` or ``step()``. Raises
        a GradientError, ExchangeError or UpdateError, as in `gradwire.torch.ddp`.
        """
        if self._entry is None:
            self._check_included()
        else:
            self._entry.synchronize()

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Let ``step()`` in this block apply ``.grad`` as it is, after `synchronize`."""
        self._skips = True
        try:
            yield
        finally:
            self._skips = False

    def _let_go(self) -> None:
        """Stop exchanging gradients: the ranks change, or other options follow."""
        if self._entry is not None:
            self._entry.remove()
        if self.handle is not None:
            self.handle.detach(moments=False)  # the state of the handle has them
        self._entry = self.handle = None

    def _before_step(self, closure: Callable[[], Any] | None) -> Callable[[], Any] | None:
        """Average gradients now, or return a closure that does so after the given one."""
        entry = self._entry
        if entry is None:
            self._check_included()
            return closure
        if self._skips:
            if entry.begun:
                raise UpdateError(
                    "gradients are being exchanged: call synchronize() before step() within "
                    "skip_synchronize()"
                )
            return closure
        if closure is None:
            if self._settings.options.scaled:
                self._check_for_scaler()
            self.synchronize()
            return None

        def averaged() -> Any:
            loss = closure()
            self.synchronize()
            return loss

        return averaged

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """The flag of fused optimizers, which torch's loss scaler reads first in its ``step()``."""
        self._check_for_scaler()
        default = self.__dict__.get("_step_supports_amp_scaling", False)
        return bool(getattr(super(), "_step_supports_amp_scaling", default))

    @_step_supports_amp_scaling.setter
    def _step_supports_amp_scaling(self, supported: bool) -> None:
        self.__dict__["_step_supports_amp_scaling"] = supported

    def _check_for_scaler(self) -> None:
        """Raise an UpdateError if ``.grad`` lacks the gradients that a loss scaler must check."""
        if self._entry is not None and self._entry.begun:
            raise UpdateError(
                "a loss scaler reads .grad before step(), so it must already hold averages: call "
                "optimizer.synchronize() before scaler.unscale_(optimizer) or "
                "scaler.step(optimizer)"
            )

    def _check_included(self) -> None:
        """Raise a ValueError if this rank must take part, but does not."""
        if self._settings is not None and self._settings.process_set.included():
            raise ValueError(
                "this optimizer is not attached, because ranks may come and go: put it into a "
                "gradwire.torch.horovod.ElasticState, whose sync() attaches it, as "
                "hvd.elastic.run does before it calls the function"
            )


def wrap(optimizer: Optimizer) -> Any:
    """Return an optimizer of a new class, which shares all state with the given one.

    So schedulers of either change the same groups. Raises a ValueError if it is already
    distributed.
    """
    kind: Any = _class_of(getattr(optimizer, "wrapped_class", type(optimizer)))
    wrapped = kind.__new__(kind)
    wrapped.__dict__ = optimizer.__dict__
    if wrapped.handle is not None and wrapped.handle.attached:
        raise ValueError("this optimizer is already distributed: detach() its handle first")
    wrapped._let_go()
    # What a scheduler has put there would bypass the class; and it looks whether it was called.
    if getattr(wrapped.__dict__.pop("step", None), "_wrapped_by_lr_sched", False):
        wrapped.__dict__["step"] = _recording_step(wrapped, kind.step)
    return wrapped


def _recording_step(optimizer: Optimizer, step: Callable[..., Any]) -> Callable[..., Any]:
    """Return an optimizer's step, wrapped as by torch's schedulers to record every call."""

    @functools.wraps(step)
    def noticed(*args: Any, **kwargs: Any) -> Any:
        optimizer._opt_called = True  # type: ignore[attr-defined]
        return step(optimizer, *args, **kwargs)

    noticed._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
    return noticed


def _class_of(kind: Any) -> type:
    """Return a class derived from the class of an optimizer.

    Its own methods are hidden from Horovod: ``hvd.broadcast_optimizer_state`` calls the `step` of
    its parent to make a state, on some ranks only.
    """

    class Made(Distributed, kind):  # type: ignore[misc]
        wrapped_class = kind

        def step(self, closure: Callable[[], Any] | None = None) -> Any:
            """Average the gradients, and update the parameters."""
            closure = self._before_step(closure)
            result = super().step() if closure is None else super().step(closure)
            if self._entry is not None:
                self._entry.synchronized = False
            return result

        # torch would call the hooks of users here, and again in the step of the parent.
        step.hooked = True  # type: ignore[attr-defined]

        def zero_grad(self, set_to_none: bool = True) -> None:
            """Clear all gradients. Not while they are being exchanged."""
            if self._entry is not None:
                self._entry.forget("zero_grad()")
                self._entry.synchronized = False  # what was averaged is gone
            super().zero_grad(set_to_none)

        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            """Load a `state_dict` of this or of the original optimizer."""
            if self._entry is not None:
                self._entry.forget("load_state_dict()")
            super().load_state_dict(state_dict)

        def add_param_group(self, param_group: dict[str, Any]) -> None:
            """Raise a ValueError: Horovod would not average the new parameters."""
            if self._entry is not None:
                raise ValueError(
                    "add_param_group() would leave parameters out of the exchange: make the "
                    "optimizer with all parameters, including any that start frozen, and then "
                    "DistributedOptimizer"
                )
            super().add_param_group(param_group)

    Made.__name__ = kind.__name__
    Made.__qualname__ = kind.__qualname__
    # How Horovod knows such optimizers.
    Made.__module__ = library.DistributedOptimizer.__module__
    return Made


def DistributedOptimizer(  # as Horovod's
    optimizer: Optimizer,
    named_parameters: Iterable[tuple[str, torch.nn.Parameter]] | None = None,
    *,
    backward_passes_per_step: int = 1,
    op: Any = library.Average,
    groups: int | None = None,
    sparse_as_dense: bool = False,
    process_set: Any = None,
    codec: Codecs | None = None,
    schedule: Schedule | None = None,
    grad_scaler: GradScaler | None = None,
    min_numel: int = 1024,
    min_ndim: int = 1,
    low_memory: bool | None = None,
    timeout: timedelta | None = None,
) -> Any:
    """Average the gradients of an optimizer over all ranks of Horovod, compressed by a codec.

    Replaces ``hvd.DistributedOptimizer``. Gradients are exchanged
    in buckets during the backward pass, each by one all-gather of frames, in the same order on all
    ranks; ``step()`` waits for them. Entries that are not sent stay in residuals, which
    ``optimizer.handle`` saves and restores. A collective: call it on every rank of the process set.
    In an elastic run it is not a collective: `ElasticState` attaches the codec.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
        Any but LBFGS. It is not changed; the result shares groups and state with it.
    named_parameters : iterable of (str, torch.nn.Parameter), optional
        Names of all parameters of the optimizer, by which residuals are saved: usually
        ``model.named_parameters()``. Numbered by default.
    backward_passes_per_step : int
        Backward passes whose gradients add up before they are exchanged.
    op : horovod.ReduceOp
        ``hvd.Average`` or ``hvd.Sum``.
    groups : int, optional
        Number of groups of parameters that are exchanged together. By default, buckets of 25 MiB.
    sparse_as_dense : bool
        Exchange sparse gradients as dense ones, compressed by the codec. Otherwise they are
        exchanged as they are.
    process_set : horovod.torch.ProcessSet, optional
        Average over these ranks only. On other ranks the result is a plain optimizer.
    codec : gradwire.Codec, str, or mapping of str to (gradwire.Codec, str or None), optional
        As in `gradwire.torch.ddp.attach`, but not ``"auto"``; as are ``schedule``,
        ``grad_scaler``, ``min_numel``, ``min_ndim`` and ``low_memory``.
    timeout : datetime.timedelta, optional
        How long to wait for other ranks. By default forever, as Horovod does, which detects dead
        ranks.

    Returns
    -------
    torch.optim.Optimizer
        An optimizer of a class derived from that of ``optimizer``, with ``synchronize``,
        ``skip_synchronize``, ``set_backward_passes_per_step`` and ``handle``, a
        `gradwire.torch.ddp.Handle`.

    Raises
    ------
    TypeError, ValueError
        Arguments are invalid, incompatible, or differ between the ranks; or Horovod is not
        initialized.
    ExchangeError
        A rank was lost during the call.

    Warns
    -----
    PairingWarning
        The optimizer costs accuracy with this codec.
    """
    check_initialized()
    _check_kind(optimizer)
    passes = _validate.integer("backward_passes_per_step", backward_passes_per_step, low=1)
    _validate.timeout(timeout)
    members = process_set_of(process_set)
    named = _named(optimizer, named_parameters)
    if os.environ.get("HOROVOD_ELASTIC") == "1" and members is not library.global_process_set:
        raise ValueError("process_set= does not work in an elastic run, whose sets change")
    wrapped = wrap(optimizer)
    options = Options(
        codec=default_codec(optimizer) if codec is None else codec,
        optimizer=wrapped,
        schedule=schedule,
        grad_scaler=grad_scaler,
        min_numel=min_numel,
        min_ndim=min_ndim,
        low_memory=low_memory,
    )
    if op not in (library.Average, library.Sum):
        raise ValueError(f"op must be hvd.Average or hvd.Sum, got {op!r}")
    if op == library.Sum and any(codec.memory.updates for codec in options.assignment.codecs):
        raise ValueError("op=hvd.Sum would add up the steps that this codec sends: use hvd.Average")
    settings = Settings(
        named=named,
        buckets=form(named, groups),
        options=options,
        passes_per_step=passes,
        op=op,
        sparse_as_dense=_validate.boolean("sparse_as_dense", sparse_as_dense),
        process_set=members,
        timeout=timeout,
    )
    wrapped._settings = settings
    # Where ranks may join at any time, only ElasticState.sync() brings all of them together.
    if members.included() and os.environ.get("HOROVOD_ELASTIC") != "1":
        attach(wrapped, settings)
    return wrapped


def attach(optimizer: Distributed, settings: Settings) -> None:
    """Attach the codec to a distributed optimizer. A collective."""
    transport = HorovodTransport(settings.process_set, settings.timeout)
    entry = HorovodSource(settings, transport)
    places = {id(tensor): at for at, tensor in enumerate(settings.named.values())}
    optimizer.handle = attach_engine(
        settings.named,
        settings.options,
        transport,
        entry,
        sparse=set(),
        bucket_nbytes=BUCKET,
        facts={
            "backward_passes_per_step": settings.passes_per_step,
            "op": int(settings.op),
            "groups": checksum(
                [[places[id(tensor)] for tensor in one] for one in settings.buckets]
            ),
            "sparse_as_dense": settings.sparse_as_dense,
        },
    )
    optimizer._entry = entry


def _check_kind(optimizer: object) -> None:
    """Raise a TypeError or ValueError for an optimizer that cannot be distributed."""
    check_optimizer(optimizer)
    if isinstance(optimizer, torch.optim.LBFGS):
        raise TypeError("LBFGS decides by this rank's own loss how often it computes gradients")
    theirs = type(optimizer).__module__ == library.DistributedOptimizer.__module__
    if theirs and not isinstance(optimizer, Distributed):
        raise ValueError("hvd.DistributedOptimizer has wrapped this optimizer: pass the original")


def _named(
    optimizer: Optimizer, named_parameters: Iterable[tuple[str, torch.nn.Parameter]] | None
) -> dict[str, torch.nn.Parameter]:
    """Return the parameters of an optimizer by name, in the order of the names.

    Further names are allowed; of two names of a parameter, the first counts. Raises a ValueError if
    one has no name, or none of its own. By default, parameters are numbered.
    """
    parameters = [tensor for group in optimizer.param_groups for tensor in group["params"]]
    if named_parameters is None:
        return {f"parameter{at}": tensor for at, tensor in enumerate(parameters)}
    names: dict[int, str] = {}
    for name, tensor in dict(named_parameters).items():
        names.setdefault(id(tensor), name)
    known = {id(tensor): tensor for tensor in parameters}
    if missing := [tuple(tensor.shape) for tensor in parameters if id(tensor) not in names]:
        raise ValueError(
            f"named_parameters= lacks {len(missing)} parameters of the optimizer, of the shapes "
            f"{missing[:6]}: pass model.named_parameters() of all models that it trains, each with "
            "names of its own"
        )
    return plain_names({name: known[key] for key, name in names.items() if key in known})
