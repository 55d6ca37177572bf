"""Deadlines for a machine that may be busy: they stretch with what other programs take of it."""

import time

_SAMPLE = 0.02
"""Seconds of work by which the speed of the machine is measured."""

_VALID = 5.0
"""Seconds for which a measurement is used again."""

_MOST = 20.0
"""Beyond this, a deadline would hide that something hangs."""


class _Slowness:
    """How many times as long as on an idle machine a program takes now."""

    def __init__(self) -> None:
        self._at, self._value = -_VALID, 1.0

    def now(self) -> float:
        """Measure, unless it was measured a moment ago; from 1 to `_MOST`."""
        if time.monotonic() - self._at > _VALID:
            began, spent = time.monotonic(), time.thread_time()
            while time.thread_time() - spent < _SAMPLE:
                pass
            self._at = time.monotonic()
            self._value = min(max((self._at - began) / _SAMPLE, 1.0), _MOST)
        return self._value


_SLOWNESS = _Slowness()


def stretched(seconds: float) -> float:
    """Return a time limit that takes as much work as so many seconds of an idle machine."""
    return seconds * _SLOWNESS.now()


def expires(began: float, seconds: float) -> bool:
    """Tell whether a limit that began then is over, measured as the machine is now."""
    waited = time.monotonic() - began
    return waited > seconds and waited > stretched(seconds)
