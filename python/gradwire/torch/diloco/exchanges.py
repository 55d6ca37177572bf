"""Exchanges of fragments under way."""

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta

import torch

from gradwire.torch.collective.calls import Call, Started, start
from gradwire.torch.diloco.replica import FragmentState, Position, Replica, fill
from gradwire.torch.engine.consensus import ControlChannel
from gradwire.torch.engine.engine import Engine
from gradwire.torch.errors import ExchangeError, GradientError, TensorError, fresh

__all__ = ["FragmentExchange", "FragmentExchanges"]

_MESSAGE = 64
"""Bytes of the message before each exchange, and of that after it."""

_WANTED = "join"


class FragmentExchanges:
    """Sends fragments and applies them, in the order of their numbers, and counts both."""

    def __init__(self, replica: Replica, engine: Engine) -> None:
        self._replica = replica
        self._flying: deque[FragmentExchange] = deque()
        self._waited = 0.0
        self._exchanges = 0
        self._before = 0.0
        self._confirm: ControlChannel | None = None
        self._wanted: Callable[[], bool] = lambda: False
        self._heard: int | None = None
        self.engine = engine

    def connect(self, engine: Engine, confirm: ControlChannel, wanted: Callable[[], bool]) -> None:
        """Exchange with other ranks from now on.

        Nothing is applied before they have all met in `confirm`. `wanted` tells whether others want
        to join.
        """
        self._before += self._sent()  # by the engine so far: each one counts from 0
        self.engine, self._confirm, self._wanted = engine, confirm, wanted
        self._heard = None

    @property
    def _position(self) -> Position:
        return self._replica.position

    @property
    def due(self) -> bool:
        """Whether any rank has told that others want to join, before an exchange since applied."""
        return self._heard is not None and self._heard < self._position["applied"]

    # Exchanges --------------------------------------------------------------------------------

    def advance(self) -> bool:
        """Apply or send what is due next; return whether anything was."""
        timetable, now = self._replica.timetable, self._position["inner_step"]
        if self._flying and timetable.applied_at(self._flying[0].number) <= now:
            self._apply()
        elif timetable.sent_at(self._position["sent"]) <= now:
            self._send()
        else:
            return False
        return True

    def _send(self) -> None:
        """Start the exchange of the next fragment."""
        number = self._position["sent"]
        parts, own = self._fragment(number), self._own(number)
        buckets = [(part.layout, part.change(each)) for part, each in zip(parts, own, strict=True)]

        def heard(every: list[str]) -> None:
            if _WANTED in every and self._heard is None:
                self._heard = number

        told = _WANTED if self._wanted() else ""
        call = Call("diloco", number, {"exchange": number}, heard, told)
        started = start(self.engine, call, buckets)
        self._count_message()
        self._exchanges += 1
        self._position["sent"] = number + 1
        kept = own if self._replica.outer.carry else None
        self._flying.append(FragmentExchange(number, started, kept))

    def _apply(self) -> None:
        """Wait for the oldest exchange, and make the outer step of its fragment."""
        flight = self._flying[0]
        begun = time.perf_counter()
        try:
            flight.settle()
            if self._confirm is not None:
                self._count_message()
                self._confirm.compare("applied", str(flight.number))
        finally:
            self._waited += time.perf_counter() - begun
        self._make()

    def arrive(self) -> None:
        """Wait until everything has arrived or is lost, whatever it has brought."""
        for flight in self._flying:
            try:
                flight.settle()
            except ExchangeError:
                break

    def settled(self) -> list[tuple[FragmentState, torch.Tensor]]:
        """Wait for all that is under way, and return the averages, which stay to be applied.

        What has failed is sent again by a run that resumes from here.
        """
        found = []
        for flight in self._flying:
            try:
                means = flight.averages()
            except ExchangeError:
                self._forget(flight.number)
                break
            found += list(zip(self._fragment(flight.number), means, strict=True))
        return found

    def as_sent(self) -> list[tuple[FragmentState, torch.Tensor]]:
        """Return this rank's own parameters as they were sent, for what is under way."""
        return [
            each
            for flight in self._flying
            for each in zip(self._fragment(flight.number), flight.own or (), strict=False)
        ]

    def load(self, pending: dict[str, torch.Tensor], own: dict[str, torch.Tensor]) -> None:
        """Begin at the position of a checkpoint, with the averages to be applied.

        Without a rank's own parameters as they were sent, what it has trained since cannot be told
        from that: it then goes on from the shared ones.
        """
        self._flying.clear()
        for number in range(self._position["applied"], self._position["sent"]):
            parts = self._fragment(number)
            names = {record.name for part in parts for record in part.records}
            means, sent = self._room(number), None
            fill(parts, means, pending)
            if self._replica.outer.carry and own.keys() >= names:
                sent = self._own(number)
                fill(parts, sent, own)
            self._flying.append(FragmentExchange(number, own=sent, means=means))

    def restore(self) -> None:
        """Set this rank's own parameters to the shared ones: what it trains from now on counts."""
        for part in self._replica.parts:
            part.write()
        if self._replica.outer.carry:
            for flight in self._flying:
                flight.own = self._own(flight.number)

    def _make(self) -> None:
        flight = self._flying.popleft()
        self._position["applied"] += 1
        means = flight.averages()
        for at, (part, mean) in enumerate(zip(self._fragment(flight.number), means, strict=True)):
            part.step(self._replica.outer, mean, flight.own[at] if flight.own else None)

    def _own(self, number: int) -> list[torch.Tensor]:
        return [part.own() for part in self._fragment(number)]

    def _room(self, number: int) -> list[torch.Tensor]:
        """Return room for the averages of an exchange."""
        return [
            torch.zeros_like(part.shared, dtype=torch.float32) for part in self._fragment(number)
        ]

    def _fragment(self, number: int) -> list[FragmentState]:
        return self._replica.fragments[number % len(self._replica.fragments)]

    def _forget(self, number: int) -> None:
        """Drop the exchanges from this number on, which will be sent again."""
        self._position["sent"] = max(number, self._position["applied"])
        self._flying = deque(each for each in self._flying if each.number < number)

    # Other ranks ------------------------------------------------------------------------------

    def land(self) -> None:
        """Wait until everything has arrived or is lost, and end the exchange with these ranks."""
        self.arrive()
        self.engine.pipeline.flush()

    @property
    def arrived(self) -> dict[int, bool]:
        """The exchanges that have arrived, and whether their averages are finite."""
        return {each.number: each.failure is None for each in self._flying if each.arrived}

    def follow(self, applied: int, sent: int) -> TensorError | None:
        """Apply what others have applied; what nobody will apply goes back into the residuals.

        Returns what one of them has raised there.
        """
        failure = None
        while self._position["applied"] < applied:
            try:
                self._make()
            except TensorError as error:
                failure = error
        self.take_back(sent)
        return failure

    def take_back(self, number: int) -> None:
        """Undo what was sent from this number on."""
        worker = self.engine.pipeline
        for flight in reversed(self._flying):
            if flight.number >= number and flight.started is not None:
                step = flight.started.step
                worker.discard(step)
                worker.run_in_sender(step.undo_all)
        self._forget(number)

    def count(self) -> None:
        """Take back no more of what has arrived until now."""
        for flight in self._flying:
            flight.started = None

    def receive(self, finite: Mapping[int, bool]) -> None:
        """Have room for the averages of exchanges that others have received, if they are finite."""
        self._flying.clear()
        for number, fine in finite.items():
            flight = FragmentExchange(number)
            if fine:
                flight.means = self._room(number)
            else:
                flight.failure = TensorError(0, 0, None, 0)
            self._flying.append(flight)

    def means(self) -> list[torch.Tensor]:
        """Return the averages to be applied."""
        return [mean for each in self._flying for mean in each.means or ()]

    # Figures ----------------------------------------------------------------------------------

    def figures(self) -> tuple[float, float, int]:
        """Return bytes sent, seconds waited, and exchanges started."""
        return self._before + self._sent(), self._waited, self._exchanges

    def _sent(self) -> float:
        return self.engine.exchange.times.wire_bytes

    def _count_message(self) -> None:
        self._before += _MESSAGE * (self.engine.size - 1)

    def close(self, timeout: timedelta) -> None:
        """Exchange no more."""
        if timeout:
            self.engine.leave(timeout)
        self.engine.abandon()


@dataclass(slots=True, eq=False)
class FragmentExchange:
    """One exchange: under way, or with what it has brought.

    `started` is None if it was settled before this rank, or this run, began. `own` are this rank's
    own parameters as they were when it was sent, if what it trains in the meantime is to be
    carried. When it has arrived, there are averages in `means`, or a `failure` on all ranks alike.
    """

    number: int
    started: Started | None = None
    own: list[torch.Tensor] | None = None
    means: list[torch.Tensor] | None = None
    failure: TensorError | None = None

    @property
    def arrived(self) -> bool:
        """Whether it was settled, and is to be applied."""
        return self.means is not None or self.failure is not None

    def settle(self) -> None:
        """Wait for the averages, and keep them; raise the ExchangeError if it was lost."""
        if self.arrived:
            return
        assert self.started is not None
        try:
            self.means = self.started.averages()
        except GradientError as error:
            self.failure = TensorError(error.count, error.first, error.name, error.rank)

    def averages(self) -> list[torch.Tensor]:
        """Wait, and return the averages, or raise the TensorError."""
        self.settle()
        if self.means is None:
            assert self.failure is not None
            raise fresh(self.failure) from None
        return self.means
