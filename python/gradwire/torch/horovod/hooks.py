"""The hooks that report gradients as they become ready."""

import gc
import weakref
from collections.abc import Callable
from typing import Any

import torch

_placed: "weakref.WeakSet[Hooks]" = weakref.WeakSet()  # those that are in place, in this process


class Hooks:
    """The hooks of one optimizer on its parameters, named by their ids; they do not keep it alive.

    The method ``arrived`` is called with each parameter whose gradient is ready.
    """

    def __init__(self, names: dict[int, str], arrived: Callable[[torch.Tensor], None]) -> None:
        self._names = names
        self._arrived = weakref.WeakMethod(arrived)
        self._registered: list[Any] = []
        self.active = False

    def check(self) -> None:
        """Remove other hooks on these parameters; raise a ValueError if they exchange gradients."""
        if self._others():
            gc.collect()  # an optimizer that nobody has any more may not be gone yet
        for other in self._others():
            if other.active:
                shared = self._names.keys() & other._names.keys()
                name = next(name for key, name in self._names.items() if key in shared)
                raise ValueError(
                    f"{name!r} belongs to another distributed optimizer, which exchanges its "
                    "gradient: detach() the handle of that one first"
                )
            other.remove()

    def place(self, tensor: torch.Tensor) -> None:
        """Register a hook."""
        known = self._arrived

        def hook(parameter: torch.Tensor) -> None:
            arrived = known()
            if arrived is not None:
                arrived(parameter)

        required = tensor.requires_grad
        tensor.requires_grad_(True)  # a frozen parameter takes no hooks, but keeps them
        registered = tensor.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
        tensor.requires_grad_(required)
        self._registered.append(registered)
        _placed.add(self)

    def remove(self) -> None:
        """Stop intercepting gradients."""
        _placed.discard(self)
        while self._registered:
            self._registered.pop().remove()

    def _others(self) -> "list[Hooks]":
        """Return the hooks of other optimizers that have some of these parameters."""
        every = (each for each in _placed if each is not self)
        return [each for each in every if self._names.keys() & each._names.keys()]
