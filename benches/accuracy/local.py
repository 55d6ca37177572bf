"""Collectives between threads: a channel for each simulated rank of one process."""

import itertools
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor

from gradwire.torch.transport import LocalChannel


class Hub:
    """Where so many ranks of one channel meet."""

    def __init__(self, size: int) -> None:
        self.given: list[Any] = [None] * size
        self.barrier = threading.Barrier(size)


class Ended:
    """A collective of threads, which has ended when it was started on every rank."""

    def wait(self) -> None:
        """Return at once."""


class Local(LocalChannel):
    """The channel of one rank. Its collectives raise a RuntimeError once the barrier is broken."""

    is_open = True

    def __init__(self, hub: Hub, rank: int) -> None:
        self.rank, self.size = rank, len(hub.given)
        self._hub = hub

    def _meet(self, given: Any, take: Callable[[list[Any]], Any]) -> Any:
        """Return what this rank takes of what all have given, once every rank has taken its own."""
        self._hub.given[self.rank] = given
        self._hub.barrier.wait()
        taken = take(self._hub.given)
        self._hub.barrier.wait()
        return taken

    def all_gather(self, out: Tensor, mine: Tensor) -> Ended:
        self._meet(mine, lambda every: torch.cat(every, out=out))
        return Ended()

    def all_reduce(self, tensor: Tensor) -> Ended:
        tensor.copy_(self._meet(tensor, lambda every: sum(every[1:], every[0])))
        return Ended()

    def broadcast(self, tensor: Tensor, source: int) -> Ended:
        self._meet(tensor, lambda every: tensor.copy_(every[source]))
        return Ended()

    def all_to_all(
        self,
        out: Tensor,
        mine: Tensor,
        out_sizes: Sequence[int] | None = None,
        sizes: Sequence[int] | None = None,
    ) -> Ended:
        def take(every: list[Sequence[Tensor]]) -> None:
            for part, parts in zip(self._parts(out, out_sizes), every, strict=True):
                part.copy_(parts[self.rank])

        self._meet(self._parts(mine, sizes), take)
        return Ended()

    def _parts(self, tensor: Tensor, sizes: Sequence[int] | None) -> Sequence[Tensor]:
        return tensor.chunk(self.size) if sizes is None else torch.split(tensor, list(sizes))

    def set_timeout(self, timeout: timedelta) -> None:
        """Return: threads of one process do not lose each other."""


def channels(hubs: list[Hub], rank: int, ranks: int) -> Callable[..., Local]:
    """Return what makes the channels of a rank, which every rank makes in the same order."""
    numbers = itertools.count()

    def make(*device_backends: object) -> Local:
        number = next(numbers)
        if number == len(hubs):
            hubs.append(Hub(ranks))
        return Local(hubs[number], rank)

    return make
