"""Exchanges of fragments under way."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch

from gradwire.torch.diloco.checkpoint import Position
from gradwire.torch.diloco.part import Part
from gradwire.torch.diloco.replica import Replica
from gradwire.torch.diloco.sharing import share
from gradwire.torch.errors import ExchangeError, GradientError, TensorError
from gradwire.torch.reducer.agreement import agree
from gradwire.torch.reducer.engine import Call, Engine, Started

__all__ = ["Flight", "Flights"]

_MEETING = 64
"""Bytes of the message before each exchange."""


@dataclass(slots=True, eq=False)
class Flight:
    """One exchange: under way, or with what it has brought."""

    number: int
    started: Started | None = None
    means: list[torch.Tensor] | None = None

    def settle(self) -> list[torch.Tensor]:
        """Wait for the averages, and keep them."""
        if self.means is None:
            assert self.started is not None
            self.means = self.started.averages()
        return self.means


class Flights:
    """Sends fragments and applies them, in the order of their numbers. Making one is a collective.

    Parameters
    ----------
    connect : callable
        Makes the engine, from tensors on the devices of those to come.
    replica : Replica
    position : dict
        How far training is; kept up to date.
    """

    def __init__(
        self,
        connect: Callable[[Sequence[torch.Tensor]], Engine],
        replica: Replica,
        position: Position,
    ) -> None:
        self._replica = replica
        self._position = position
        self._flying: deque[Flight] = deque()
        self._waited = 0.0
        self._exchanges = 0
        self.engine = connect([part.shared for part in replica.parts])
        try:
            with self.engine.control.act("DiLoCo()") as channel:
                agree(channel, "made a DiLoCo", replica.settings)
                share(channel, [*replica.shared(), *replica.buffers], 0)
        except BaseException:
            self.engine.abandon()
            raise
        for part in replica.parts:
            part.write()
        replica.start(self.engine.rank)

    @property
    def first(self) -> int | None:
        """Number of the exchange to be applied next; None if none is under way."""
        return self._flying[0].number if self._flying else None

    # Exchanges --------------------------------------------------------------------------------

    def send(self) -> None:
        """Start the exchange of the next fragment."""
        number = self._position["sent"]
        buckets = [(part.layout, part.change()) for part in self._fragment(number)]
        started = self.engine.start(Call("diloco", number, {"exchange": number}), buckets)
        self._exchanges += 1
        self._position["sent"] = number + 1
        self._flying.append(Flight(number, started))

    def apply(self) -> None:
        """Wait for the oldest exchange, and make the outer step of its fragment."""
        flight = self._flying[0]
        try:
            means = self._settle(flight)
        except GradientError as error:
            self._flying.popleft()
            self._position["applied"] += 1  # left out, on all ranks alike
            raise TensorError(error.count, error.first, error.name, error.rank) from None
        self._flying.popleft()
        self._position["applied"] += 1
        for part, mean in zip(self._fragment(flight.number), means, strict=True):
            part.step(self._replica.outer, mean)

    def settled(self) -> list[tuple[Part, torch.Tensor]]:
        """Wait for all that is under way, and return the averages, which stay to be applied.

        What has failed is sent again by a run that resumes from here.
        """
        found = []
        for flight in self._flying:
            try:
                means = self._settle(flight)
            except ExchangeError:
                self._position["sent"] = flight.number
                self._flying = deque(each for each in self._flying if each.number < flight.number)
                break
            found += list(zip(self._fragment(flight.number), means, strict=True))
        return found

    def _settle(self, flight: Flight) -> list[torch.Tensor]:
        begun = time.perf_counter()
        try:
            return flight.settle()
        finally:
            self._waited += time.perf_counter() - begun

    def load(self, pending: dict[str, torch.Tensor]) -> None:
        """Begin at the position of a checkpoint, with the averages to be applied."""
        self._flying.clear()
        for number in range(self._position["applied"], self._position["sent"]):
            means = []
            for part in self._fragment(number):
                flat = torch.empty_like(part.shared, dtype=torch.float32)
                for record, values in part.split(flat):
                    values.copy_(pending[record.name])
                means.append(flat)
            self._flying.append(Flight(number, means=means))

    def _fragment(self, number: int) -> list[Part]:
        return self._replica.fragments[number % len(self._replica.fragments)]

    # Figures ----------------------------------------------------------------------------------

    def figures(self) -> tuple[float, float, int]:
        """Return bytes sent, seconds waited, and exchanges started."""
        times = self.engine.exchange.times
        meetings = self._exchanges * _MEETING * (self.engine.size - 1)
        return times.wire_bytes + meetings, self._waited, self._exchanges

    def close(self, timeout: timedelta) -> None:
        """Exchange no more."""
        if timeout:
            self.engine.leave(timeout)
        self.engine.abandon()
