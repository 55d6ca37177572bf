"""Collectives between threads: a channel for each simulated rank of one process."""

import itertools
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor

from gradwire.torch.transport import LocalChannel

Act = Callable[[list[Any]], None]


class Hub:
    """Where so many ranks of one channel meet."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._arrived = threading.Condition()
        self._given: dict[int, dict[int, Any]] = {}
        self._missing: set[int] = set()
        self._error: BaseException | None = None

    def join(self, number: int, rank: int, given: Any, act: Act) -> "Meeting":
        with self._arrived:
            every = self._given.setdefault(number, {})
            every[rank] = given
            self._missing.add(number)
            if len(every) == self.size:
                act([each for _, each in sorted(self._given.pop(number).items())])
                self._missing.remove(number)
                self._arrived.notify_all()
        return Meeting(self, number)

    def wait(self, number: int) -> None:
        with self._arrived:
            self._arrived.wait_for(lambda: number not in self._missing or self._error is not None)
            if number in self._missing:
                raise RuntimeError(f"another rank has failed: {self._error!r}")

    def fail(self, error: BaseException) -> None:
        with self._arrived:
            self._error = error
            self._arrived.notify_all()


class Meeting:
    """A collective that was started."""

    def __init__(self, hub: Hub, number: int) -> None:
        self._hub, self._number = hub, number

    def wait(self) -> None:
        self._hub.wait(self._number)


class Local(LocalChannel):
    """The channel of one rank."""

    def __init__(self, hub: Hub, rank: int) -> None:
        self.rank, self.size = rank, hub.size
        self._hub = hub
        self._numbers = itertools.count()

    @property
    def is_open(self) -> bool:
        """Yes: threads of one process are always connected."""
        return True

    def all_gather(self, out: Tensor, mine: Tensor) -> Meeting:
        return self._join((out, mine), _all_gather)

    def all_reduce(self, tensor: Tensor) -> Meeting:
        return self._join(tensor, _all_reduce)

    def broadcast(self, tensor: Tensor, source: int) -> Meeting:
        return self._join((tensor, source), _broadcast)

    def all_to_all(
        self,
        out: Tensor,
        mine: Tensor,
        out_sizes: Sequence[int] | None = None,
        sizes: Sequence[int] | None = None,
    ) -> Meeting:
        return self._join(
            (_parts(out, out_sizes, self.size), _parts(mine, sizes, self.size)), _swap
        )

    def gather(self, mine: Tensor, to: int) -> list[Tensor]:
        """Return the tensors of all ranks on one of them; an empty list on the others."""
        every: list[Tensor] = self.all_gather_object(mine)
        return every if self.rank == to else []

    def all_gather_object(self, mine: Any) -> list[Any]:
        found: list[Any] = []
        self._join((found, mine), _objects).wait()
        return found

    def set_timeout(self, timeout: timedelta) -> None:
        """Return: threads of one process do not lose each other."""

    def _join(self, given: Any, act: Act) -> Meeting:
        return self._hub.join(next(self._numbers), self.rank, given, act)


def _parts(tensor: Tensor, sizes: Sequence[int] | None, ranks: int) -> list[Tensor]:
    return list(tensor.chunk(ranks) if sizes is None else torch.split(tensor, list(sizes)))


def _all_gather(given: list[Any]) -> None:
    whole = torch.cat([mine for _, mine in given])
    for out, _ in given:
        out.copy_(whole)


def _all_reduce(given: list[Tensor]) -> None:
    total = given[0].clone()
    for each in given[1:]:
        total += each
    for each in given:
        each.copy_(total)


def _broadcast(given: list[Any]) -> None:
    source, _ = given[given[0][1]]
    for tensor, _ in given:
        tensor.copy_(source)


def _swap(given: list[Any]) -> None:
    for rank, (outs, _) in enumerate(given):
        for out, (_, parts) in zip(outs, given, strict=True):
            out.copy_(parts[rank])


def _objects(given: list[Any]) -> None:
    for found, _ in given:
        found += [mine for _, mine in given]
