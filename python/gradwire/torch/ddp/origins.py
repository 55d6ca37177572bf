"""What each ``.grad`` holds: a gradient of this rank, an average, or what the codec made of it."""

import enum
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from gradwire.torch.ddp.record import Parameter

__all__ = ["Mark", "Origin", "Origins"]


class Origin(enum.IntEnum):
    """Where the value of a parameter's ``.grad`` comes from."""

    UNKNOWN = 0
    """No backward pass yet: what is there was put there by hand."""
    LOCAL = 1
    """Backward passes of this rank; it has not been exchanged."""
    AVERAGED = 2
    """A plain average over the ranks."""
    SENT = 3
    """The average of decoded frames."""
    MIXED = 4
    """The average of decoded frames, with gradients of a later pass added to it."""


class Mark:
    """The origin of one parameter's ``.grad``, followed by two hooks of autograd.

    The first runs before a gradient is added to ``.grad``, so it sees whether the program has
    cleared ``.grad`` since the last pass, whatever it used for that. The second runs when it was
    added: `torch.autograd.grad` calls only the first.
    """

    __slots__ = ("_hooks", "_next", "_tensor", "origin", "parameter")

    def __init__(self, parameter: Parameter) -> None:
        tensor: Any = parameter.tensor
        self.parameter = parameter
        self.origin = self._next = Origin.UNKNOWN
        # Not the tensor: its hooks would keep it alive.
        self._tensor = weakref.ref(tensor)
        required = tensor.requires_grad
        tensor.requires_grad_(True)  # a frozen parameter takes no hooks, but keeps them
        self._hooks = (
            tensor.register_hook(self._arrive),
            tensor.register_post_accumulate_grad_hook(self._added),
        )
        tensor.requires_grad_(required)

    @property
    def held(self) -> torch.Tensor | None:
        """The value of ``.grad``; None also if it is zero, which is how some programs clear it."""
        tensor = self._tensor()
        gradient = None if tensor is None else tensor.grad
        return None if gradient is None or not gradient.any() else gradient

    def remove(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks:
            hook.remove()

    def _arrive(self, gradient: torch.Tensor) -> None:
        tensor = self._tensor()
        self._next = _LOCAL
        if self.origin < _SENT or tensor is None:
            return
        if tensor.grad is not None and self.held is not None:
            self._next = _MIXED

    def _added(self, tensor: torch.Tensor) -> None:
        self.origin = self._next


# Looking up a member of an enumeration costs as much as the rest of the hook.
_LOCAL, _SENT, _MIXED = Origin.LOCAL, Origin.SENT, Origin.MIXED


class Origins:
    """The origins of all parameters of a model that have a codec.

    Parameters
    ----------
    parameters : sequence of Parameter
    """

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        self.marks = [Mark(each) for each in parameters]
        self._by_id = {id(mark.parameter.tensor): mark for mark in self.marks}
        self._seen: tuple[Mark, int] | None = None

    def remove(self) -> None:
        """Follow no gradient any more."""
        for mark in self.marks:
            mark.remove()

    def exchanged(self, parameters: Iterable[Parameter], origin: Origin) -> None:
        """Record that a bucket with these parameters is exchanged."""
        for parameter in parameters:
            mark = self._by_id.get(id(parameter.tensor))
            if mark is not None:
                mark.origin = origin

    def averaged(self, tensors: Iterable[torch.Tensor]) -> None:
        """Record that DDP averages a bucket by itself."""
        for tensor in tensors:
            mark = self._by_id.get(id(tensor))
            if mark is not None and mark.origin is not Origin.MIXED:
                mark.origin = Origin.AVERAGED

    def mixed(self) -> Mark | None:
        """Return a parameter whose bucket would mix what was decoded with new gradients."""
        for mark in self.marks:
            # One that is still SENT has got no gradient in this pass, so far: it is cleared or not.
            if mark.origin >= Origin.SENT and mark.held is not None:
                return mark
        return None

    def kept(self, parameter: Parameter) -> bool:
        """Tell whether what was decoded last is still in ``.grad``, alone or mixed."""
        mark = self._by_id[id(parameter.tensor)]
        return mark.origin >= Origin.SENT and mark.held is not None

    # Changes between the backward pass and the optimizer's step --------------------------------

    def watch(self) -> None:
        """Remember the version of one ``.grad`` that was just decoded."""
        self._seen = None
        for mark in self.marks:
            if mark.origin is Origin.SENT:
                gradient = mark.parameter.tensor.grad
                if gradient is not None:
                    self._seen = (mark, _version(gradient))
                    return

    def changed(self) -> bool:
        """Tell whether the program has written to it since, as gradient clipping does."""
        if self._seen is None:
            return False
        mark, version = self._seen
        gradient = mark.parameter.tensor.grad
        return gradient is not None and _version(gradient) != version


def _version(tensor: Any) -> int:
    return int(tensor._version)
