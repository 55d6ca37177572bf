"""Gradients as they become ready: the hooks that report them, and the buckets that are due."""

import gc
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from gradwire import _validate
from gradwire.torch.errors import UpdateError

BUCKET = 25 << 20  # bytes without ``groups=``: one is encoded while the one before is exchanged


def form(named: Mapping[str, torch.Tensor], groups: int | None) -> list[list[torch.Tensor]]:
    """Return the parameters in buckets of one dtype and device each, in the order of exchange.

    That is the order in which gradients become ready: the last parameter comes first. ``groups`` is
    the number of groups, as in Horovod; by default, buckets of up to 25 MiB.
    """
    every = list(named.values())
    found: list[list[torch.Tensor]] = []
    if groups is not None:
        length = -(-len(every) // _validate.integer("groups", groups, low=1))
        found = [every[at : at + length] for at in range(0, len(every), length)][::-1]
    else:
        room = 0
        for each in reversed(every):
            if not found or room < each.nbytes:
                found.append([])
                room = BUCKET
            found[-1].insert(0, each)
            room -= each.nbytes
    alike: dict[tuple[int, torch.dtype, torch.device], list[torch.Tensor]] = {}
    for at, group in enumerate(found):
        for each in group:
            alike.setdefault((at, each.dtype, each.device), []).append(each)
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
        active = [[each for each in bucket if each.requires_grad] for bucket in buckets]
        self.buckets = [bucket for bucket in active if bucket]
        self._passes = passes
        self._name_of = name_of
        self._counts: dict[int, int] = {}
        self._bucket_of = {
            id(each): index for index, bucket in enumerate(self.buckets) for each in bucket
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
