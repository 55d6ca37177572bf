"""The times of steps, by the clock of the host or by the events of a device."""

import statistics
import time

import torch


class StepClock:
    """Measures the steps between its marks.

    On the host a mark is a time. On a device, which works behind the host, it is an event on the
    current stream, and only `median` waits for it. On devices, this is untested.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._marks: list[float | torch.Event] = []
        self._looked: float | None = None

    def clear(self) -> None:
        """Forget all marks."""
        self._marks.clear()

    def mark(self) -> int:
        """Record the end of a step; return how many steps are known."""
        self._marks.append(self._now())
        self._looked = self._looked or time.perf_counter()
        return len(self._marks) - 1

    def _now(self) -> float | torch.Event:
        if self._device.type == "cpu":
            return time.perf_counter()
        event = torch.Event(self._device, enable_timing=True)
        event.record()
        return event

    def median(self) -> float:
        """Return the median step in seconds."""
        last = self._marks[-1]
        if isinstance(last, torch.Event):
            last.synchronize()
        return statistics.median(map(_between, self._marks[:-1], self._marks[1:]))

    def elapsed(self) -> float:
        """Return the seconds since the last call, or the first mark, by the host."""
        before, self._looked = self._looked, time.perf_counter()
        return 0.0 if before is None else self._looked - before


def _between(one: float | torch.Event, other: float | torch.Event) -> float:
    if isinstance(one, torch.Event) and isinstance(other, torch.Event):
        return float(one.elapsed_time(other)) / 1e3
    assert isinstance(one, float)
    assert isinstance(other, float)
    return other - one
