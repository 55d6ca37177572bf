"""The class of a distributed optimizer: that of the user's optimizer, with what Horovod's adds."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from torch.optim import Optimizer

from gradwire.torch.errors import UpdateError
from gradwire.torch.horovod.entry import OptimizerEntry
from gradwire.torch.reducer.handle import Handle
from gradwire.torch.transport.horovod import library

__all__ = ["Distributed", "wrap"]


class Distributed:
    """What every optimizer made by `DistributedOptimizer` has in common.

    Attributes
    ----------
    handle : Handle or None
        Controls the compression. None on a rank outside of the process set, and in a copy.
    """

    handle: Handle | None = None
    wrapped_class: type[Optimizer]
    _entry: OptimizerEntry | None = None
    _settings: Any = None
    _scaled = False
    _skips = False

    @property
    def backward_passes_per_step(self) -> int:
        """Backward passes before gradients are exchanged."""
        return 1 if self._entry is None else self._entry.passes_per_step

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Change the number of backward passes before gradients are exchanged; between steps."""
        if isinstance(passes, bool) or not isinstance(passes, int) or passes < 1:
            raise ValueError(f"backward_passes_per_step must be a positive integer, got {passes!r}")
        if self._entry is not None:
            self._entry.forget()
            self._entry.passes_per_step = passes

    def synchronize(self) -> None:
        """Wait until ``.grad`` holds averages. A collective.

        Exchanges what the backward passes did not: a parameter without a gradient has zeros, as
        with Horovod. For clipping, and before a loss scaler's ``unscale_()`` or ``step()``.

        Raises
        ------
        GradientError, ExchangeError, UpdateError, UndoError
            As described in `gradwire.torch.ddp`.
        """
        if self._entry is not None:
            self._entry.synchronize()

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Let ``step()`` in this block apply ``.grad`` as it is, after `synchronize`."""
        self._skips = True
        try:
            yield
        finally:
            self._skips = False

    def _before_step(self, closure: Callable[[], Any] | None) -> Callable[[], Any] | None:
        """Have gradients averaged, now or after the closure, which this returns."""
        entry = self._entry
        if entry is None:
            return closure
        if self._skips:
            if entry.begun:
                raise UpdateError(
                    "gradients are being exchanged: call synchronize() before step() within "
                    "skip_synchronize()"
                )
            return closure
        if closure is None:
            if self._scaled and entry.begun:
                raise UpdateError(
                    "a loss scaler looks at .grad before step(), when it must hold averages: call "
                    "optimizer.synchronize() before scaler.unscale_(optimizer) or "
                    "scaler.step(optimizer)"
                )
            self.synchronize()
            return None

        def averaged() -> Any:
            loss = closure()
            self.synchronize()
            return loss

        return averaged

    def _after_step(self) -> None:
        if self._entry is not None:
            self._entry.synchronized = False

    def _before_change(self, what: str) -> None:
        """Raise a ValueError unless this optimizer is detached."""
        if self._entry is not None:
            raise ValueError(
                f"{what} would leave parameters out of the exchange: make the optimizer with all "
                "parameters, also those that are frozen at first, and then DistributedOptimizer"
            )


def wrap(optimizer: Optimizer) -> Any:
    """Return an optimizer of a class of its own, which shares everything with the given one.

    So schedulers of either change the same groups.
    """
    kind: Any = _class_of(type(optimizer))
    wrapped = kind.__new__(kind)
    wrapped.__dict__ = optimizer.__dict__
    # What a scheduler has put there would bypass the class.
    wrapped.__dict__.pop("step", None)
    return wrapped


def _class_of(kind: Any) -> type:
    """Return a class derived from the class of an optimizer.

    Its own methods are those that Horovod passes over: ``hvd.broadcast_optimizer_state`` calls the
    `step` of its parent to make a state, on some ranks only.
    """

    class Made(Distributed, kind):  # type: ignore[misc]
        wrapped_class = kind

        def step(self, closure: Callable[[], Any] | None = None) -> Any:
            """Average the gradients, and update the parameters."""
            closure = self._before_step(closure)
            result = super().step() if closure is None else super().step(closure)
            self._after_step()
            return result

        # torch would call the hooks of users here, and again in the step of the parent.
        step.hooked = True  # type: ignore[attr-defined]

        def zero_grad(self, set_to_none: bool = True) -> None:
            """Clear all gradients. Not while they are being exchanged."""
            if self._entry is not None:
                self._entry.forget()
            super().zero_grad(set_to_none)

        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            """Load what `state_dict` of this or of the optimizer it was made from returned."""
            if self._entry is not None:
                self._entry.forget()
            super().load_state_dict(state_dict)

        def add_param_group(self, param_group: dict[str, Any]) -> None:
            """Raise a ValueError: Horovod would not average what is added."""
            self._before_change("add_param_group()")
            super().add_param_group(param_group)

    Made.__name__ = kind.__name__
    Made.__qualname__ = kind.__qualname__
    # How Horovod knows such optimizers.
    Made.__module__ = library.DistributedOptimizer.__module__
    return Made
