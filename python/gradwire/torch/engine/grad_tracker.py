"""Tracks what each ``.grad`` holds: a local gradient, an average, or the codec's update."""

import enum
from collections.abc import Container, Iterable, Sequence
from typing import Any

import torch

from gradwire.torch import backends
from gradwire.torch.engine.bucket_contents import BucketContents
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

    ``origin`` is known unless there is a ``flag`` on a device: then it is MIXED if the flag is set,
    and else LOCAL. `GradTracker.read_flags` reads them.
    """

    __slots__ = ("_hooks", "_next_flag", "_next_origin", "flag", "origin", "parameter", "tensor")

    def __init__(self, parameter: ParameterSlot) -> None:
        tensor: Any = parameter.tensor
        self.parameter, self.tensor = parameter, tensor
        self.origin = self._next_origin = GradSource.UNKNOWN
        self.flag: torch.Tensor | None = None
        self._next_flag: torch.Tensor | None = None
        required = tensor.requires_grad
        tensor.requires_grad_(True)  # a frozen parameter takes no hooks, but keeps them
        self._hooks = (
            tensor.register_hook(self.arrive),
            tensor.register_post_accumulate_grad_hook(self._added),
        )
        tensor.requires_grad_(required)

    @property
    def is_zero(self) -> bool:
        """Whether ``.grad`` is None or zero, which is how some programs clear it."""
        return self.tensor.grad is None or not bool(local(self.tensor.grad).any())

    def sent(self) -> torch.Tensor:
        """Return a flag on the device: ``.grad`` still holds decoded values.

        Call it if ``.grad`` is not None, and it was SENT or MIXED or its origin is a flag.
        """
        holds = local(self.tensor.grad).any()
        return holds if self.flag is None else holds & self.flag

    def remove(self) -> None:
        """Remove the hooks, which keep the parameter alive."""
        for hook in self._hooks:
            hook.remove()

    def arrive(self, gradient: torch.Tensor | None = None) -> None:
        """Record what ``.grad`` holds before a gradient is added to it."""
        del gradient
        self._next_flag, self._next_origin = None, _LOCAL
        if self.tensor.grad is None or (self.origin < _SENT and self.flag is None):
            return
        flag = self.sent()
        if backends.backend_for(flag).waits:
            self._next_flag = flag
        elif flag:
            self._next_origin = _MIXED

    def _added(self, tensor: torch.Tensor) -> None:
        del tensor
        self.origin, self.flag = self._next_origin, self._next_flag
        self._next_origin, self._next_flag = _UNKNOWN, None


# Looking up a member of an enumeration costs as much as the rest of the hook.
_UNKNOWN, _LOCAL = GradSource.UNKNOWN, GradSource.LOCAL
_AVERAGED, _SENT, _MIXED = GradSource.AVERAGED, GradSource.SENT, GradSource.MIXED


class GradTracker:
    """The origins of the gradients of all parameters of a model that have a codec."""

    def __init__(self, parameters: Sequence[ParameterSlot]) -> None:
        self.marks = [GradMark(parameter) for parameter in parameters]
        self._by_id = {id(mark.tensor): mark for mark in self.marks}
        # Empty shards show nothing.
        self._watched = [mark for mark in self.marks if local(mark.tensor).numel()]
        self._turn = 0
        self._samples: list[tuple[torch.Tensor, Any, torch.Tensor]] = []  # with their rows

    def exchanged(self, contents: BucketContents) -> None:
        """Record that a bucket is exchanged."""
        for parameters, origin in ((contents.compressed, _SENT), (contents.uncoded, _AVERAGED)):
            for parameter in parameters:
                if (mark := self._by_id.get(id(parameter.tensor))) is not None:
                    mark.origin, mark.flag = origin, None

    def arriving(self, tensors: Iterable[torch.Tensor]) -> None:
        """Record that gradients are about to be added, where autograd does not tell: in FSDP."""
        for mark in self._marks_of(tensors):
            mark.arrive()

    def averaged(self, tensors: Iterable[torch.Tensor]) -> None:
        """Record that DDP averages a bucket by itself."""
        marks = self._marks_of(tensors)
        self.read_flags(marks)
        for mark in marks:
            if mark.origin is not _MIXED:
                mark.origin = _AVERAGED

    def _marks_of(self, tensors: Iterable[torch.Tensor]) -> list[GradMark]:
        return [mark for key in map(id, tensors) if (mark := self._by_id.get(key)) is not None]

    def mixed(self) -> ParameterSlot | None:
        """Return a parameter whose bucket would mix its codec's updates with new gradients, if any.

        Waits for a device only if ``.grad`` was not cleared by setting it to None, and then once.
        """
        # One that is still SENT has got no gradient in this pass, so far: it is cleared or not.
        return next(iter(_holding(self.marks, computed=True)), None)

    def holding(self, parameters: Iterable[ParameterSlot]) -> list[ParameterSlot]:
        """Return the parameters whose ``.grad`` still holds the last decoded values. Waits once."""
        return _holding([self._by_id[id(parameter.tensor)] for parameter in parameters])

    def replaced(self, parameters: Iterable[ParameterSlot]) -> bool:
        """Tell whether every ``.grad`` has been replaced since these values were decoded.

        Does not wait for a device: a ``.grad`` whose flag is still unread counts as decoded.
        """
        mark = None
        for parameter in parameters:
            mark = self._by_id[id(parameter.tensor)]
            if mark.origin >= _SENT or mark.flag is not None:
                return False
        return mark is not None

    def read_flags(self, marks: Sequence[GradMark] | None = None) -> None:
        """Read the flags of all marks, or of some, with a single wait for a device."""
        marks = self.marks if marks is None else marks
        flagged = [(mark, mark.flag) for mark in marks if mark.flag is not None]
        if flagged:
            for (mark, _), mixed in zip(flagged, _values(flagged), strict=True):
                mark.origin, mark.flag = _MIXED if mixed else _LOCAL, None

    # Changes between the backward pass and the optimizer's step --------------------------------

    def watch(self) -> None:
        """Copy a few samples of what was just decoded, each pass of other parameters and rows.

        A loss scaler and clipping change every sample that is not zero.
        """
        self._samples = []
        watched = [
            mark.tensor
            for mark in self._watched
            if mark.origin is _SENT and mark.parameter.computed and mark.tensor.grad is not None
        ]
        for at in range(self._turn, self._turn + min(_SAMPLES, len(watched))):
            turn, index = divmod(at, len(watched))
            tensor = watched[index]
            here = getattr(tensor.grad, "_local_tensor", tensor.grad).detach()
            rows: Any = ...
            if here.numel() > _SAMPLE:  # rows 4 to 7, say, in the second turn
                count = max(_SAMPLE * len(here) // here.numel(), 1)
                start = turn * count % len(here)
                rows = slice(start, start + count)
            self._samples.append((tensor, rows, here[rows].clone()))
        self._turn += len(self._samples)

    def changed(self, ids: Container[int]) -> bool | torch.Tensor:
        """Tell whether the samples of these tensors have changed since, as by gradient clipping.

        Does not wait for a device: the result may be a flag on it.
        """
        flags = [
            (getattr(grad, "_local_tensor", grad)[rows].to(before.dtype) != before).any()
            for tensor, rows, before in self._samples
            if (grad := tensor.grad) is not None and id(tensor) in ids
        ]
        return torch.stack(flags).any() if flags else False


_SAMPLES = 4  # gradients, of which entries are copied in each pass
_SAMPLE = 1 << 12  # entries of each, or a whole row


def _holding(marks: Iterable[GradMark], *, computed: bool = False) -> list[ParameterSlot]:
    """Return the parameters whose ``.grad`` still holds decoded values, with a single wait."""
    flagged = [
        (mark.parameter, mark.sent())
        for mark in marks
        if mark.tensor.grad is not None
        and (mark.origin >= _SENT or mark.flag is not None)
        and (mark.parameter.computed or not computed)
    ]
    if not flagged:
        return []
    return [slot for (slot, _), holds in zip(flagged, _values(flagged), strict=True) if holds]


def _values(flagged: Sequence[tuple[Any, torch.Tensor]]) -> list[bool]:
    """Return the values of flags, with a single wait if they are on one device."""
    flags = [flag for _, flag in flagged]
    if len({flag.device for flag in flags}) > 1:
        return [bool(flag) for flag in flags]
    values: list[bool] = torch.stack(flags).tolist()
    return values
