"""The class of a distributed optimizer: the user's class with the methods of Horovod's."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

from torch.optim import Optimizer

from gradwire import _validate
from gradwire.torch.engine.handle import Handle
from gradwire.torch.errors import UpdateError
from gradwire.torch.horovod.source import HorovodSource
from gradwire.torch.transport.horovod import library


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
        own = self.__dict__.get("_step_supports_amp_scaling", False)
        return bool(getattr(super(), "_step_supports_amp_scaling", own))

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
