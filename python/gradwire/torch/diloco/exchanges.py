"""Exchanges of fragments in progress."""

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from gradwire.torch.collective import Call, Started, start
from gradwire.torch.diloco.replica import Flats, FragmentState, Replica
from gradwire.torch.engine.consensus import ControlChannel
from gradwire.torch.engine.engine import Engine
from gradwire.torch.errors import ExchangeError, GradientError, TensorError, fresh
from gradwire.torch.transport import Channel

_MESSAGE = 64  # bytes of the message before each exchange, and of that after it
_WANTED = "join"


class FragmentExchanges:
    """Sends fragments and applies their averages, in the order of exchange numbers; counts both."""

    def __init__(self, replica: Replica, engine: Engine) -> None:
        self._replica = replica
        self._position = replica.position
        self._flying: deque[FragmentExchange] = deque()
        self._waited = 0.0
        self._exchanges = 0
        self._before = 0.0
        self._confirm: ControlChannel | None = None
        self._wanted: Callable[[], bool] = lambda: False
        self._heard: int | None = None
        self.engine = engine

    def connect(self, engine: Engine, confirm: ControlChannel, wanted: Callable[[], bool]) -> None:
        """Exchange with other ranks; `confirm` synchronizes them before anything is applied."""
        self._before += self._sent()  # by the engine so far: each one counts from 0
        self.engine, self._confirm, self._wanted = engine, confirm, wanted
        self._heard = None

    @property
    def due(self) -> bool:
        """Whether any rank has told that others want to join, before an exchange since applied."""
        return self._heard is not None and self._heard < self._position["applied"]

    # Exchanges --------------------------------------------------------------------------------

    def advance(self) -> bool:
        """Apply or send the fragment that is due next, if any; return whether one was."""
        timetable, now = self._replica.timetable, self._position["inner_step"]
        if self._flying and timetable.applied_at(self._flying[0].number) <= now:
            self._apply()
        elif timetable.sent_at(self._position["sent"]) <= now:
            self._send()
        else:
            return False
        return True

    def _send(self) -> None:
        """Start the exchange of the next fragment; with the first one, of untrained tensors."""
        self._replica.check()
        number = self._position["sent"]
        parts = self._fragment(number)
        flats = _own_flats(parts)
        # Pseudo-gradients: by what this rank has moved the parameters, negated.
        buckets = [(part.contents, (part.shared - flat).float()) for part, flat in flats.items()]

        flight = FragmentExchange(number, parts)
        untrained = self._replica.untrained
        first = number % len(self._replica.fragments) == 0 and untrained.settings
        changes = untrained.changed() if first else None

        def read_messages(every: list[str]) -> None:
            if changes is not None:
                with self.engine.control.act("untrained tensors") as channel:
                    flight.untrained = untrained.average(channel, changes)
                size = channel.size
                sent = sum(tensor.nbytes for tensor in flight.untrained.values())
                self._before += 2 * (size - 1) / size * sent + _MESSAGE * (size - 1)
            if _WANTED in every and self._heard is None:
                self._heard = number

        message = _WANTED if self._wanted() else ""
        call = Call("diloco", number, {"exchange": number}, read_messages, message)
        flight.started = start(self.engine, call, buckets)
        self._count_message()
        self._exchanges += 1
        self._position["sent"] = number + 1
        if self._replica.outer.carry:
            flight.own = flats
        self._flying.append(flight)

    def _apply(self) -> None:
        """Wait for the oldest exchange, and make the outer step of its fragment."""
        flight = self._flying[0]
        begun = time.perf_counter()
        try:
            flight.wait()
            if self._confirm is not None:
                self._count_message()
                self._confirm.compare("applied", str(flight.number))
        finally:
            self._waited += time.perf_counter() - begun
        self._make()

    def wait_for_all(self) -> None:
        """Wait until every exchange has arrived or is lost, whatever its outcome."""
        for flight in self._flying:
            try:
                flight.wait()
            except ExchangeError:
                break

    def wait_for_averages(self) -> Flats:
        """Wait for the averages, to be applied later; drop failed exchanges, to be sent again."""
        self.wait_for_all()
        there = list(itertools.takewhile(lambda flight: flight.arrived, self._flying))
        means = {part: mean for flight in there for part, mean in flight.averages().items()}
        self._forget(self._position["applied"] + len(there))
        return means

    def sent_parameters(self) -> Flats:
        """Return this rank's parameters as sent, for the exchanges in progress."""
        return {part: flat for flight in self._flying for part, flat in flight.own.items()}

    def untrained(self) -> dict[str, torch.Tensor]:
        """Return the averages of untrained tensors that are to be applied: of one exchange."""
        return {
            name: tensor for flight in self._flying for name, tensor in flight.untrained.items()
        }

    def load(
        self,
        pending: dict[str, torch.Tensor],
        sent: dict[str, torch.Tensor],
        untrained: dict[str, torch.Tensor],
    ) -> None:
        """Begin at the position of a checkpoint, with the averages to be applied.

        A rank without its own parameters as sent continues from the shared ones.
        """
        self._flying.clear()
        for number in range(self._position["applied"], self._position["sent"]):
            parts = self._fragment(number)
            flight = FragmentExchange(number, parts)
            flight.means = {part: part.flat(pending) for part in parts}
            names = {record.name for part in parts for record in part.records}
            if self._replica.outer.carry and sent.keys() >= names:
                flight.own = {part: part.flat(sent) for part in parts}
            if number % len(self._replica.fragments) == 0:
                flight.untrained = untrained
            self._flying.append(flight)

    def restore(self) -> None:
        """Reset this rank's parameters to the shared ones, and drop its unsent progress."""
        for part in self._replica.parts:
            part.write(part.shared)
        if self._replica.outer.carry:
            for flight in self._flying:
                flight.own = _own_flats(flight.parts)

    def _make(self) -> None:
        flight = self._flying.popleft()
        self._position["applied"] += 1
        for part, mean in flight.averages().items():
            part.step(self._replica.outer, mean, flight.own.get(part))
        self._replica.untrained.shared.update(flight.untrained)

    def _fragment(self, number: int) -> list[FragmentState]:
        return self._replica.fragments[number % len(self._replica.fragments)]

    def _forget(self, number: int) -> None:
        """Drop the exchanges from this number on, which will be sent again."""
        self._position["sent"] = max(number, self._position["applied"])
        self._flying = deque(flight for flight in self._flying if flight.number < number)

    # Other ranks ------------------------------------------------------------------------------

    def wait_and_disconnect(self) -> None:
        """Wait until every exchange has arrived or is lost, and disconnect from these ranks."""
        self.wait_for_all()
        self.engine.pipeline.flush()
        self.engine.abandon()

    @property
    def arrived(self) -> dict[int, bool]:
        """The exchanges that have arrived, and whether their averages are finite."""
        return {flight.number: flight.failure is None for flight in self._flying if flight.arrived}

    def catch_up(self, applied: int, sent: int) -> TensorError | None:
        """Apply and undo exchanges as other ranks did; return the error that one of them raised."""
        failure = None
        while self._position["applied"] < applied:
            try:
                self._make()
            except TensorError as error:
                failure = error
        self.take_back(sent)
        return failure

    def take_back(self, number: int) -> None:
        """Undo the exchanges from this number on: their values return to the residuals."""
        worker = self.engine.pipeline
        for flight in reversed(self._flying):
            if flight.number >= number and flight.started is not None:
                step = flight.started.step
                worker.discard(step)
                worker.run_in_sender(step.undo_all)
        self._forget(number)

    def make_final(self) -> None:
        """Make all exchanges that have arrived final: they can no longer be undone."""
        for flight in self._flying:
            flight.started = None

    def receive(self, finite: Mapping[int, bool]) -> None:
        """Allocate the averages of exchanges that other ranks have received, if they are finite."""
        self._flying.clear()
        for number, fine in finite.items():
            parts = self._fragment(number)
            flight = FragmentExchange(number, parts)
            if fine:
                flight.means = {part: torch.zeros_like(part.shared).float() for part in parts}
            else:
                flight.failure = TensorError(0, 0, None, 0)
            self._flying.append(flight)

    def align(self, channel: Channel, source: int, *, new: bool) -> None:
        """Give new ranks the averages of untrained tensors, also those to be applied."""
        untrained = self._replica.untrained
        for held in (untrained.shared, *(flight.untrained for flight in self._flying)):
            untrained.align_shared(channel, source, held, new=new)

    def means(self) -> list[torch.Tensor]:
        return [mean for flight in self._flying for mean in (flight.means or {}).values()]

    # Figures ----------------------------------------------------------------------------------

    def figures(self) -> tuple[float, float, int]:
        return self._before + self._sent(), self._waited, self._exchanges

    def _sent(self) -> float:
        return self.engine.exchange.times.wire_bytes

    def _count_message(self) -> None:
        self._before += _MESSAGE * (self.engine.size - 1)


def _own_flats(parts: Iterable[FragmentState]) -> Flats:
    return {part: part.own() for part in parts}


@dataclass(slots=True, eq=False)
class FragmentExchange:
    """One exchange: in progress, or arrived, with the same averages or failure on all ranks."""

    number: int
    parts: Sequence[FragmentState]
    started: Started | None = None  # None if it was settled before this rank, or this run, began
    own: Flats = field(default_factory=dict)  # this rank's, as it was sent, to carry what follows
    means: Flats | None = None
    untrained: dict[str, torch.Tensor] = field(default_factory=dict)  # averages, to be applied
    failure: TensorError | None = None

    @property
    def arrived(self) -> bool:
        return self.means is not None or self.failure is not None

    def wait(self) -> None:
        """Wait for the averages, and keep them; raise the ExchangeError if it was lost."""
        if self.arrived:
            return
        assert self.started is not None
        try:
            self.means = dict(zip(self.parts, self.started.averages(), strict=True))
        except GradientError as error:
            self.failure = TensorError(error.count, error.first, error.name, error.rank)

    def averages(self) -> Flats:
        """Wait, and return the averages; raise a TensorError if they are not finite."""
        self.wait()
        if self.means is None:
            assert self.failure is not None
            raise fresh(self.failure) from None
        return self.means
