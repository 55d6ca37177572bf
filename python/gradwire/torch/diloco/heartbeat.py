"""A rank's view of the store: the roster, and which ranks are alive."""

import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from gradwire.torch.diloco.roster import Roster
from gradwire.torch.errors import MembershipError
from gradwire.torch.transport import Secret, Store

_ROSTER = "roster"
_NUMBER = re.compile(rb"[0-9]{1,18}")
_UNREADABLE = (
    "the {} of this run in the store cannot be read: {}. It was written by ranks with another "
    "release or token, or by somebody else: give all ranks the same release and token=, and start "
    "again with another name="
)


@dataclass(slots=True)
class _Pulse:
    """The last beat of a rank, when it was seen first, and whether there was one before it."""

    beat: int
    at: float
    again: bool = False


class Heartbeat:
    """Reads the roster regularly, and counts beats: this rank's own and those of others.

    Beats are counted, not timed, so that clocks need not agree: a rank is silent for as long as
    this rank has seen no new beat of it. All times are in seconds. With a secret, only entries that
    are signed with it are accepted. An unreadable entry, or a roster older than the last one seen,
    raises a MembershipError.
    """

    def __init__(self, name: str, timeout: float, secret: Secret | None = None) -> None:
        self.name = name
        self.timeout = timeout
        self.interval = min(timeout / 15, 5.0)  # between looks
        self.silence = timeout / 3  # after which a rank is given up
        self._secret = secret
        self._beats = 0
        self._pulses: dict[str, _Pulse] = {}
        self.roster = Roster()
        self.at: float | None = None

    @property
    def age(self) -> float:
        """Seconds since the roster was read."""
        return float("inf") if self.at is None else time.monotonic() - self.at

    def look(self, store: Store) -> Roster:
        """Beat, and read everything."""
        try:
            roster, beats = self._look(store)
        except MembershipError:
            self.at = None  # whoever asks what was seen has to look for himself, and is told
            raise
        now = time.monotonic()
        if self.at is not None and now - self.at > 3 * self.interval + 1.0:
            self._pulses.clear()  # this process was stopped: it cannot tell who was silent
        for each, beat in beats.items():
            pulse = self._pulses.get(each)
            if pulse is None or pulse.beat < beat:
                self._pulses[each] = _Pulse(beat, now, again=pulse is not None)
        self.at = now
        return roster

    def _look(self, store: Store) -> tuple[Roster, dict[str, int]]:
        self._beats += 1
        key = f"beat/{self.name}"
        store.set(key, self._sealed(key, b"%d" % self._beats))
        roster = self._current(store)
        there = {*roster.members, *roster.waiting}
        return roster, {each: self._beat_of(store, each) for each in there}

    def silent(self, name: str) -> float:
        """Return the seconds since the last new beat of a rank; 0 for this rank."""
        pulse = self._pulses.get(name)
        return 0.0 if pulse is None or name == self.name else time.monotonic() - pulse.at

    def beats(self, name: str) -> bool:
        """Return whether this rank saw a new beat, not just one from before it looked."""
        pulse = self._pulses.get(name)
        return name == self.name or (pulse is not None and pulse.again)

    def alive(self, names: Iterable[str]) -> list[str]:
        """Return the ranks that are not given up."""
        return [each for each in names if self.silent(each) < self.silence]

    def change(self, store: Store, act: Callable[[Roster], Roster]) -> Roster:
        """Change the roster, retrying if other ranks change it at the same time."""
        roster = self._current(store)
        while (wanted := act(roster)) != roster:
            found = self.replace(store, roster, wanted)
            if found.by == self.name and found.changes == roster.changes + 1:
                break
            roster = found
        return self.roster

    def replace(self, store: Store, old: Roster, new: Roster) -> Roster:
        """Replace the roster if nobody has changed it, and return what is there now."""
        new = replace(new, changes=old.changes + 1, by=self.name)
        texts = (self._sealed(_ROSTER, each.text()) for each in (old, new))
        found = self._read(store.compare_set(_ROSTER, *texts))
        if found == old:  # what a store answers that has none
            raise MembershipError(
                "the roster of this run is no longer in the store: somebody has deleted it. "
                "Restart from a checkpoint"
            )
        return found

    def _current(self, store: Store) -> Roster:
        """Read the roster; without waiting, return an empty one if there is none."""
        return self._read(store.compare_set(_ROSTER, "", self._sealed(_ROSTER, Roster().text())))

    def _read(self, sealed: bytes) -> Roster:
        """Read the roster; raise for one that is older than the last."""
        try:
            roster = Roster.read(self._opened(_ROSTER, sealed))
        except ValueError as error:
            raise MembershipError(_UNREADABLE.format("roster", error)) from error
        changed, seen = roster != self.roster, self.roster.changes
        if roster.changes < seen or (roster.changes == seen > 0 and changed):
            raise MembershipError(
                f"the roster in the store has {roster.changes} changes, but this rank has seen "
                f"{seen}: the store was restarted, or an old one was restored. Restart from a "
                "checkpoint"
            )
        self.roster = roster
        return roster

    def _beat_of(self, store: Store, name: str) -> int:
        """Return the number of a rank's last beat; 0 if there was none."""
        key = f"beat/{name}"
        if not store.check([key]):
            return 0
        found = self._opened(key, store.get(key))
        if not _NUMBER.fullmatch(found):
            raise MembershipError(_UNREADABLE.format(f"beat of {name}", "it is not a number"))
        return int(found)

    def _sealed(self, key: str, value: bytes) -> str:
        return (value if self._secret is None else self._secret.seal(key, value)).decode()

    def _opened(self, key: str, value: bytes) -> bytes:
        return value if self._secret is None else self._secret.open(key, value)
