"""Tracks what each ``.grad`` holds: a local gradient, an average, or the codec's update."""

import enum
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from gradwire.torch import backends
from gradwire.torch.engine.parameter import ParameterSlot
from gradwire.torch.engine.sharding import local


class GradSource(enum.IntEnum):
    """Where the value of a parameter's ``.grad`` comes from."""

    UNKNOWN = 0  # no backward pass yet: what is there was put there by hand
    LOCAL = 1  # backward passes of this rank; it has not been exchanged
    AVERAGED = 2  # a plain average over the ranks
    SENT = 3  # the average of decoded frames
    MIXED = 4  # the average of decoded frames, with gradients of a later pass added to it


class GradMark:
    """The origin of one parameter's ``.grad``, followed by two hooks of autograd.

    The first runs before a gradient is added to ``.grad``, so it sees whether the program has
    cleared ``.grad`` since the last pass, by whatever means. The second runs after the addition:
    `torch.autograd.grad` calls only the first.
    """

    def __init__(self, parameter: ParameterSlot) -> None:
        tensor: Any = parameter.tensor
        self.parameter = parameter
        self._origin = self._next = GradSource.UNKNOWN
        # On a device: whether .grad held anything when the gradient arrived, not read so far.
        self._unread: torch.Tensor | None = None
        self._arrived: torch.Tensor | None = None
        # Not the tensor: its hooks would keep it alive.
        self._tensor = weakref.ref(tensor)
        required = tensor.requires_grad
        tensor.requires_grad_(True)  # a frozen parameter takes no hooks, but keeps them
        self._hooks = (
            tensor.register_hook(self.arrive),
            tensor.register_post_accumulate_grad_hook(self._added),
        )
        tensor.requires_grad_(required)

    @property
    def origin(self) -> GradSource:
        """The source of the value of ``.grad``. May wait for a device."""
        if self._unread is not None:
            self.origin = _MIXED if self._unread else _LOCAL
        return self._origin

    @origin.setter
    def origin(self, origin: GradSource) -> None:
        self._origin, self._unread = origin, None

    @property
    def value(self) -> torch.Tensor | None:
        """The value of ``.grad``; None also if it is zero, which is how some programs clear it."""
        gradient = self._gradient
        return None if gradient is None or not gradient.any() else gradient

    @property
    def _gradient(self) -> torch.Tensor | None:
        tensor = self._tensor()
        return None if tensor is None or tensor.grad is None else local(tensor.grad)

    def sent(self) -> torch.Tensor | None:
        """Return a flag on the device: ``.grad`` still holds decoded values; None if it cannot."""
        gradient = self._gradient
        if gradient is None or (self._origin < _SENT and self._unread is None):
            return None
        held = gradient.any()
        return held if self._unread is None else held & self._unread

    def remove(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks:
            hook.remove()

    def arrive(self, gradient: torch.Tensor | None = None) -> None:
        """Record what ``.grad`` holds before a gradient is added to it."""
        del gradient
        self._arrived, self._next = None, _LOCAL
        found = self.sent()
        if found is None:
            return
        if backends.backend_for(found).waits:
            self._arrived = found
        elif found:
            self._next = _MIXED

    def _added(self, tensor: torch.Tensor) -> None:
        del tensor
        self._origin, self._unread = self._next, self._arrived
        self._next, self._arrived = _UNKNOWN, None


# Looking up a member of an enumeration costs as much as the rest of the hook.
_UNKNOWN, _LOCAL = GradSource.UNKNOWN, GradSource.LOCAL
_SENT, _MIXED = GradSource.SENT, GradSource.MIXED


class GradTracker:
    """The origins of the gradients of all parameters of a model that have a codec."""

    def __init__(self, parameters: Sequence[ParameterSlot]) -> None:
        self.marks = [GradMark(each) for each in parameters]
        self._by_id = {id(mark.parameter.tensor): mark for mark in self.marks}
        # Skip empty shards: they show nothing.
        self._watched = [mark for mark in self.marks if local(mark.parameter.tensor).numel()]
        self._turn = 0
        self._samples: list[tuple[ParameterSlot, int, torch.Tensor]] = []

    def exchanged(self, parameters: Iterable[ParameterSlot], origin: GradSource) -> None:
        """Record that a bucket with these parameters is exchanged."""
        for mark in self._marks_of(each.tensor for each in parameters):
            mark.origin = origin

    def arriving(self, tensors: Iterable[torch.Tensor]) -> None:
        """Record that gradients are about to be added, where autograd does not tell: in FSDP."""
        for mark in self._marks_of(tensors):
            mark.arrive()

    def averaged(self, tensors: Iterable[torch.Tensor]) -> None:
        """Record that DDP averages a bucket by itself."""
        for mark in self._marks_of(tensors):
            if mark.origin is not GradSource.MIXED:
                mark.origin = GradSource.AVERAGED

    def _marks_of(self, tensors: Iterable[torch.Tensor]) -> Iterator[GradMark]:
        """Return the marks of those parameters that have one."""
        return (mark for each in tensors if (mark := self._by_id.get(id(each))) is not None)

    def mixed(self) -> ParameterSlot | None:
        """Return a parameter whose bucket would mix its codec's updates with new gradients, if any.

        Waits for a device only if ``.grad`` was not cleared by setting it to None, and then once.
        """
        # One that is still SENT has got no gradient in this pass, so far: it is cleared or not.
        kept = self.kept(mark.parameter for mark in self.marks if mark.parameter.computed)
        return kept[0] if kept else None

    def kept(self, parameters: Iterable[ParameterSlot]) -> list[ParameterSlot]:
        """Return the parameters whose ``.grad`` still holds the last decoded values. Waits once."""
        asked = [(each, self._by_id[id(each.tensor)].sent()) for each in parameters]
        there = [(each, held) for each, held in asked if held is not None]
        found = _read([held for _, held in there])
        return [each for (each, _), kept in zip(there, found, strict=True) if kept]

    def replaced(self, parameters: Iterable[ParameterSlot]) -> bool:
        """Tell whether every ``.grad`` has been replaced since these values were decoded.

        Does not wait for a device: a ``.grad`` whose flag is still unread counts as decoded.
        """
        marks = [self._by_id[id(each.tensor)] for each in parameters]
        return bool(marks) and all(mark._origin < _SENT and mark._unread is None for mark in marks)

    def read_pending(self) -> None:
        """Read all pending origins, with a single wait for a device."""
        unread = [(mark, mark._unread) for mark in self.marks if mark._unread is not None]
        found = _read([held for _, held in unread])
        for (mark, _), mixed in zip(unread, found, strict=True):
            mark.origin = _MIXED if mixed else _LOCAL

    # Changes between the backward pass and the optimizer's step --------------------------------

    def watch(self) -> None:
        """Copy a few samples of what was just decoded, each pass of other parameters and rows.

        A loss scaler and clipping change every sample that is not zero.
        """
        self._samples = []
        watched = [
            (mark.parameter, gradient)
            for mark in self._watched
            if mark.origin is _SENT
            and mark.parameter.computed
            and (gradient := mark.parameter.tensor.grad) is not None
        ]
        for at in range(min(_SAMPLES, len(watched))):
            parameter, gradient = watched[(self._turn + at) % len(watched)]
            turn = (self._turn + at) // len(watched)
            self._samples.append((parameter, turn, _sample(gradient, turn).clone()))
        self._turn += len(self._samples)

    def changed(self) -> bool | torch.Tensor:
        """Tell whether the samples have changed since, as by gradient clipping.

        Does not wait for a device: the result may be a flag on it.
        """
        flags = [
            (_sample(gradient, turn).to(before.dtype) != before).any()
            for parameter, turn, before in self._samples
            if (gradient := parameter.tensor.grad) is not None
        ]
        return torch.stack(flags).any() if flags else False


_SAMPLES = 4  # gradients, of which entries are copied in each pass
_SAMPLE = 1 << 12  # entries of each, or a whole row


def _read(flags: Sequence[torch.Tensor]) -> list[bool]:
    """Return the values of flags on one device, with a single wait."""
    if len({flag.device for flag in flags}) > 1:
        return [bool(flag) for flag in flags]
    return [bool(flag) for flag in torch.stack(list(flags)).tolist()] if flags else []


def _sample(tensor: torch.Tensor, turn: int) -> torch.Tensor:
    """Return some rows of a tensor, others in each turn: rows 4 to 7, say, in the second one."""
    here = local(tensor.detach())
    if here.numel() <= _SAMPLE:
        return here
    length = here.shape[0]
    rows = max(_SAMPLE * length // here.numel(), 1)
    start = turn * rows % length
    return here.narrow(0, start, min(rows, length - start))
