"""What one rank sees in the store: the roster, and who is alive."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gradwire.torch.diloco.roster import Roster
from gradwire.torch.transport import Store

__all__ = ["Watch"]

_ROSTER = "roster"


@dataclass(slots=True)
class _Pulse:
    """The last beat of a rank, when it was seen first, and whether there was one before it."""

    beat: int
    at: float
    again: bool = False


class Watch:
    """Reads the roster regularly, and counts beats: this rank's own and those of others.

    Beats are counted, not timed, so that clocks need not agree: a rank is silent as long as this
    one, which looks at it, has seen no further beat.

    Parameters
    ----------
    name : str
        Of this rank.
    interval : float
        Seconds between looks.
    """

    def __init__(self, name: str, interval: float) -> None:
        self.name = name
        self._interval = interval
        self._pulses: dict[str, _Pulse] = {}
        self.roster = Roster()
        self.at: float | None = None

    @property
    def age(self) -> float:
        """Seconds since the roster was read."""
        return float("inf") if self.at is None else time.monotonic() - self.at

    def look(self, store: Store) -> Roster:
        """Beat, and read everything."""
        store.add(f"beat/{self.name}", 1)
        roster = Roster.read(_text(store))
        beats = {each: _count(store, each) for each in {*roster.members, *roster.waiting}}
        now = time.monotonic()
        if self.at is not None and now - self.at > 3 * self._interval + 1.0:
            self._pulses.clear()  # this process was stopped: it cannot tell who was silent
        for each, beat in beats.items():
            pulse = self._pulses.get(each)
            if pulse is None:
                self._pulses[each] = _Pulse(beat, now)
            elif pulse.beat != beat:
                self._pulses[each] = _Pulse(beat, now, again=True)
        self.roster, self.at = roster, now
        return roster

    def silent(self, name: str) -> float:
        """Return for how many seconds there was no beat of a rank; 0 for this one."""
        pulse = self._pulses.get(name)
        return 0.0 if pulse is None or name == self.name else time.monotonic() - pulse.at

    def beats(self, name: str) -> bool:
        """Return whether a rank was seen to beat, and not only to have done so."""
        pulse = self._pulses.get(name)
        return name == self.name or (pulse is not None and pulse.again)

    def alive(self, names: Iterable[str], silence: float) -> list[str]:
        """Return those that were silent for less than so many seconds."""
        return [each for each in names if self.silent(each) < silence]

    def change(self, store: Store, act: Callable[[Roster], Roster]) -> Roster:
        """Change the roster, whoever else changes it at the same time."""
        text = _text(store)
        while True:
            roster = act(Roster.read(text))
            wanted = roster.text()
            found = store.compare_set(_ROSTER, text, wanted).decode()
            if found == wanted:
                self.roster = roster
                return roster
            text = found

    def replace(self, store: Store, old: Roster, new: Roster) -> bool:
        """Replace the roster if nobody has changed it."""
        found: bytes = store.compare_set(_ROSTER, old.text(), new.text())
        return found.decode() == new.text()


def _count(store: Store, name: str) -> int:
    """Read a rank's beats. Adding 0 would read them as well, but make a file longer each time."""
    key = f"beat/{name}"
    return int(store.get(key)) if store.check([key]) else 0


def _text(store: Store) -> str:
    """Read the roster, without a wait if there is none."""
    text: bytes = store.compare_set(_ROSTER, "", Roster().text())
    return text.decode()
