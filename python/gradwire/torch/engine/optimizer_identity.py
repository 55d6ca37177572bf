"""Checks the promise made to `attach`: that this optimizer, with these options, makes the steps."""

import functools
import sys
import types
import weakref
from collections.abc import Iterable, Mapping

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from gradwire._codec import Codec
from gradwire.torch.engine.grad_tracker import GradTracker
from gradwire.torch.engine.pairing import (
    check_pairing,
    has_momentum,
    name_of,
    options_of,
    warn_of_pairing,
)
from gradwire.torch.engine.parameter import ParameterSlot
from gradwire.torch.engine.sharding import local
from gradwire.torch.errors import UpdateError

_PATIENCE = 3  # passes in a row that may be undone while somebody else changes the parameters
_DEPTH = 4  # attributes, containers and methods between an optimizer and one inside it, at most


class OptimizerIdentity:
    """Checks before each optimizer step whether the optimizer is the attached one.

    The compressed parameters are given by the ids of their tensors. ``hook`` is the handle of
    torch's global pre-step hook, which keeps nothing alive.
    """

    def __init__(
        self, optimizer: Optimizer, parameters: Mapping[int, ParameterSlot], tracker: GradTracker
    ) -> None:
        self._optimizer = optimizer
        self._parameters = parameters
        self._tracker = tracker
        self._options = list(map(options_of, optimizer.param_groups))
        self._had_momentum = has_momentum(optimizer)
        self._stepping = False
        self._undone = 0  # passes in a row
        self._sums: torch.Tensor | None = None  # of the parameters, when one was undone
        hook = functools.partial(_before_step, weakref.ref(self))
        self.hook = register_optimizer_step_pre_hook(hook)

    # Steps ------------------------------------------------------------------------------------

    def before_step(self, optimizer: Optimizer) -> None:
        """Raise an UpdateError for another optimizer, a ValueError for unsuitable options."""
        if optimizer is not self._optimizer:
            self._check_other(optimizer)
            return
        options = list(map(options_of, optimizer.param_groups))
        if options != self._options:
            self._check_options()
            self._options = options
        self._stepping = True

    def stepped(self) -> None:
        """Record that the optimizer has made its step."""
        self._stepping = False
        self.excuse()

    def _check_options(self) -> None:
        theirs: dict[Codec, list[ParameterSlot]] = {}
        for each in self._parameters.values():
            theirs.setdefault(each.codec, []).append(each)
        for codec, parameters in theirs.items():
            check_pairing(codec, self._optimizer, parameters)
        if not self._had_momentum and has_momentum(self._optimizer):
            self._had_momentum = True
            for codec, parameters in theirs.items():
                warn_of_pairing(codec, self._optimizer, parameters)

    def _check_other(self, optimizer: Optimizer) -> None:
        # The optimizer's step may consist of other optimizers' steps, or may have raised.
        self._stepping = self._stepping and _is_running(self._optimizer)
        theirs = _held(optimizer)
        if self._stepping or theirs.isdisjoint(self._parameters):
            return
        both = theirs & _held(self._optimizer)
        sent = self._tracker.kept(each for key, each in self._parameters.items() if key in both)
        if sent and not _wraps(optimizer, self._optimizer):
            raise UpdateError(
                f"{name_of(optimizer)} would apply gradients that were exchanged for another "
                f"optimizer, the {name_of(self._optimizer)} that attach() was given: the .grad of "
                f"{sent[0].name!r}. Nothing has changed. If this one replaces it, detach() the "
                "handle, and attach(..., optimizer=) with this one: handle.state_dict() and "
                "load_state_dict() carry the residuals over. If the loop steps both, run the "
                "passes for this one within handle.paused()"
            )

    # Passes -----------------------------------------------------------------------------------

    def excuse(self) -> None:
        """Reset the count of undone passes, after a step or an explicit undo."""
        self._undone = 0

    def check_undone(self) -> None:
        """Raise an UpdateError if passes are undone while something else trains the model.

        Call it before a pass is undone. A program may drop any number of passes; but if the
        parameters still change, it steps an optimizer that `attach` was not given.
        """
        if self._stepping:  # LBFGS makes passes within its step
            return
        self._undone += 1
        if self._undone < _PATIENCE - 1:
            return
        before, self._sums = self._sums, _sums(self._parameters.values())
        if self._undone >= _PATIENCE and before is not None and not before.equal(self._sums):
            raise UpdateError(
                f"the last {_PATIENCE} passes were undone, because {name_of(self._optimizer)}, "
                "which attach() was given, made no step after them, although the parameters have "
                "changed. Pass the optimizer that the loop steps to attach(..., optimizer=), or "
                "leave optimizer= out if it is not one of torch's. Run passes that are not for it "
                "within handle.paused()"
            )


def _before_step(claim: "weakref.ref[OptimizerIdentity]", optimizer: Optimizer, *_: object) -> None:
    """Call `before_step` of the check, if it still exists."""
    if (found := claim()) is not None:
        found.before_step(optimizer)


def _held(optimizer: Optimizer) -> set[int]:
    """Return the ids of the parameters of an optimizer."""
    return {id(each) for group in optimizer.param_groups for each in group["params"]}


def _is_running(optimizer: Optimizer) -> bool:
    """Tell whether a method of an optimizer has called this function, at any depth."""
    frame = sys._getframe()
    while (outer := frame.f_back) is not None:
        if outer.f_locals.get("self") is optimizer:
            return True
        frame = outer
    return False


def _wraps(optimizer: Optimizer, inner: Optimizer) -> bool:
    """Tell whether an optimizer has another one inside it, and so makes its step."""
    found: list[object] = [optimizer]
    seen = {id(optimizer)}
    for _ in range(_DEPTH):
        found = [part for each in found for part in _parts(each) if id(part) not in seen]
        seen |= set(map(id, found))
    return id(inner) in seen


def _parts(value: object) -> Iterable[object]:
    """Return the objects that a wrapper's attribute refers to, among which an optimizer may be."""
    if isinstance(value, torch.Tensor | torch.nn.Module | type | types.ModuleType | str | bytes):
        return ()
    if isinstance(value, Mapping):
        return value.values()
    if isinstance(value, list | tuple | set | frozenset):
        return value
    if isinstance(value, types.MethodType):
        return (value.__self__,)
    if isinstance(value, functools.partial):
        return (value.func, *value.args, *value.keywords.values())
    own = getattr(value, "__dict__", {})
    if isinstance(value, Optimizer):  # with tensors only in these
        return [each for key, each in own.items() if key not in ("state", "param_groups")]
    return own.values()


def _sums(parameters: Iterable[ParameterSlot]) -> torch.Tensor:
    """Return the bits of the sum of every parameter."""
    with torch.no_grad():
        sums = [local(each.tensor).sum(dtype=torch.float64).cpu() for each in parameters]
    return torch.stack(sums).view(torch.int64)
