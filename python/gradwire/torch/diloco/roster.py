"""The roster in the store, which ranks train together or wait to join; and a generation of them."""

import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from typing import Any, Self, TypeVar

from gradwire import _validate
from gradwire.torch.transport import messages
from gradwire.torch.transport.store import Gloo, Secret, Store, stores

VERSION = 1  # of what is in the store, which changes with what ranks of a generation do
_LONGEST = 255  # characters of a rank's name, at most: it is part of a key of the store

T = TypeVar("T")


def _of(kind: type[T], value: Any) -> T:
    if not isinstance(value, kind):
        raise TypeError(f"expected a {kind.__name__}, got a {type(value).__name__}")
    return value


def _name(value: Any) -> str:
    name = _of(str, value)
    if not 0 < len(name) <= _LONGEST or not name.isprintable():
        raise ValueError(f"a rank has the name {name[: _LONGEST + 1]!r}")
    return name


@dataclass(frozen=True, slots=True)
class Waiting:
    """A rank that waits for the next generation."""

    held: int = 0  # the generation whose shared parameters it has, 0 if it never had any
    failed: int = 0  # the generation in which it could not reach the other ranks, 0 if it could
    trained: bool = False  # it has shared parameters, of a generation or of a checkpoint
    reached: tuple[str, ...] = ()  # ranks of `failed` that it reached when it tried with each

    @classmethod
    def read(cls, fields: Any) -> Self:
        """Read it from JSON; anything else is a TypeError, ValueError or KeyError."""
        return cls(
            _validate.integer("held", fields["held"], low=0),
            _validate.integer("failed", fields["failed"], low=0),
            _of(bool, fields["trained"]),
            tuple(_name(entry) for entry in _of(list, fields["reached"])),
        )

    def without_failure(self) -> "Waiting":
        """Return a copy without the record of its failure."""
        return replace(self, failed=0, reached=())


@dataclass(frozen=True, slots=True)
class Roster:
    """The roster that all ranks read, and change by compare-and-set."""

    generation: int = 0
    members: tuple[str, ...] = ()  # in the order of ranks
    waiting: Mapping[str, Waiting] = field(default_factory=dict)  # in the order in which they came
    settings: Mapping[str, str] = field(default_factory=dict)
    trained: bool = False  # a member had shared parameters when a generation was formed
    ranks: int = 0  # that have come since the beginning of the run
    changes: int = 0  # of the roster
    by: str = ""  # who has made the last change: no two ranks make the same

    @classmethod
    def read(cls, text: bytes) -> Self:
        """Read the result of `text`; raise a ValueError for anything else."""
        try:
            fields = messages.read(text)
            if fields["version"] != VERSION:
                raise ValueError(f"it has version {fields['version']!r}, expected {VERSION}")
            waiting, settings = _of(dict, fields["waiting"]), _of(dict, fields["settings"])
            return cls(
                _validate.integer("generation", fields["generation"], low=0),
                tuple(_name(entry) for entry in _of(list, fields["members"])),
                {_name(name): Waiting.read(entry) for name, entry in waiting.items()},
                {name: _of(str, value) for name, value in settings.items()},
                _of(bool, fields["trained"]),
                _validate.integer("ranks", fields["ranks"], low=0),
                _validate.integer("changes", fields["changes"], low=0),
                _of(str, fields["by"]),
            )
        except (TypeError, KeyError) as error:
            raise ValueError(f"{type(error).__name__}: {error}") from None

    def text(self) -> bytes:
        return json.dumps({"version": VERSION, **asdict(self)}).encode()

    def with_waiting(self, name: str, waiting: Waiting, settings: Mapping[str, str]) -> "Roster":
        """Return it with one more waiting rank; raise a ValueError if its settings differ."""
        for what, value in self.settings.items():
            if settings.get(what) != value:
                raise ValueError(
                    f"this rank cannot join: its {what} is {settings.get(what)}, but that of the "
                    f"members is {value}; a run with other settings needs another name="
                )
        others = {other: entry for other, entry in self.waiting.items() if other != name}
        return replace(self, waiting={**others, name: waiting}, settings=dict(settings))

    def without(self, name: str) -> "Roster":
        """Return it without a rank. After the last rank has left, settings may change."""
        members = tuple(other for other in self.members if other != name)
        waiting = {other: entry for other, entry in self.waiting.items() if other != name}
        settings = self.settings if members or waiting else {}
        trained = self.trained and bool(members or waiting)
        return replace(self, members=members, waiting=waiting, settings=settings, trained=trained)

    def with_generation(self, chosen: Collection[str]) -> "Roster":
        """Return it with the next generation; members come first, in their order.

        Waiting ranks that are not members no longer wait, and may ask again.
        """
        ordered = [other for other in self.members if other in chosen]
        ordered += [other for other in self.waiting if other in chosen and other not in ordered]
        return replace(
            self,
            generation=self.generation + 1,
            members=tuple(ordered),
            waiting={},
            trained=self.trained or any(self.waiting[other].trained for other in ordered),
        )

    def next_members(self, alive: Collection[str]) -> list[str]:
        """Return the ranks that can form the next generation, among those waiting and alive.

        If all members came back but could not reach each other, the network is split. Then the
        largest group of former members that reach each other continues: a majority, or of two
        halves the one with the first member.
        """
        there = {name: entry for name, entry in self.waiting.items() if name in alive}
        failed = [name for name in there if there[name].failed == self.generation > 0]
        if not failed or not set(self.members) <= there.keys():
            return list(there)
        most = max(entry.held for entry in there.values())
        ordered = [*self.members, *(name for name in there if name not in self.members)]
        ordered.sort(key=lambda name: there[name].held < most)
        best = max(
            (self._group_of(name, ordered, failed) for name in ordered),
            key=lambda group: (sum(there[name].held == most for name in group), len(group)),
        )
        return [name for name in there if name in best]

    def is_split(self, alive: Collection[str], size: int) -> bool:
        """Return whether ``size`` ranks wait and are alive, but too few reach each other."""
        there = sum(name in alive for name in self.waiting)
        return there >= size > len(self.next_members(alive))

    def without_failures(self) -> "Roster":
        """Return it with the failures of waiting ranks cleared: the network may work again."""
        waiting = {name: entry.without_failure() for name, entry in self.waiting.items()}
        return replace(self, waiting=waiting)

    def _group_of(self, first: str, ordered: Sequence[str], failed: Collection[str]) -> list[str]:
        """Return a rank and others that all reach each other."""

        def reach(one: str, other: str) -> bool:
            if one not in failed or other not in failed:  # one of them has reached everybody
                return True
            return other in self.waiting[one].reached and one in self.waiting[other].reached

        group = [first]
        for name in ordered:
            if name != first and all(reach(name, other) for other in group):
                group.append(name)
        return group


@dataclass(frozen=True, slots=True)
class Generation:
    """A generation that includes this rank."""

    generation: int
    rank: int
    members: tuple[str, ...]
    trained: bool  # a member, also an earlier one, had shared parameters: nobody makes up new ones
    connect: Callable[[], Store]  # a new connection to the members' store: a wait blocks no other
    timeout: timedelta
    secret: Secret | None = None  # by which the members know each other, if there is a token
    host: str | None = None  # that of `Gloo`

    def transport(self) -> Gloo:
        size = len(self.members)
        return Gloo(self.connect(), self.rank, size, self.timeout, self.secret, self.host)

    def reachable(self) -> tuple[str, ...]:
        """Return the members that this rank reached within the timeout. All ranks call it at once.

        The result is symmetric: a rank stays connected until the other one has seen it.
        """
        others = [other for other in range(len(self.members)) if other != self.rank]
        if not others:
            return ()
        deadline = time.monotonic() + self.timeout.total_seconds()

        def reaches(other: int) -> bool:
            low, high = sorted((self.rank, other))
            pair: Gloo | None = None
            try:
                store = stores.PrefixStore(f"pair/{low}-{high}", self.connect())
                secret = None if self.secret is None else self.secret.of("pair", low, high)
                pair = Gloo(store, int(self.rank == high), 2, self.timeout, secret, self.host)
                pair.make()
                # Gloo lets one side return before the other, to which it would be an error to
                # leave.
                store.set(f"met/{self.rank}", "")
                left = timedelta(seconds=max(deadline - time.monotonic(), 0.0))
                store.wait([f"met/{other}"], max(left, self.timeout / 10))
            except RuntimeError:  # an ExchangeError, or one of the store
                return False
            finally:
                if pair is not None:
                    pair.leave()
            return True

        with ThreadPoolExecutor(len(others), "gradwire-reach") as threads:
            met_all = list(threads.map(reaches, others))
        return tuple(self.members[other] for other, met in zip(others, met_all, strict=True) if met)
