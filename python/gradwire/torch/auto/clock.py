"""The times of steps, by the clock of the host or by the events of a device."""

import statistics
import time
from typing import Any

import torch


class StepClock:
    """Measures the steps between its marks.

    On the host a mark is a time. On a device, which works behind the host, it is an event on the
    current stream, and only `median` waits for it. On devices, this is untested.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._marks: list[Any] = []
        self._looked: float | None = None

    def clear(self) -> None:
        """Forget all marks."""
        self._marks.clear()

    def mark(self) -> int:
        """Record the end of a step; return how many steps are known."""
        now: Any = time.perf_counter()
        self._looked = self._looked or now
        if self._device.type != "cpu":
            now = torch.Event(self._device, enable_timing=True)
            now.record()
        self._marks.append(now)
        return len(self._marks) - 1

    def median(self) -> float:
        """Return the median step in seconds."""
        pairs = zip(self._marks[:-1], self._marks[1:], strict=True)
        if self._device.type == "cpu":
            return float(statistics.median(end - start for start, end in pairs))
        self._marks[-1].synchronize()
        return float(statistics.median(start.elapsed_time(end) for start, end in pairs)) / 1e3

    def elapsed(self) -> float:
        """Return the seconds since the last call, or the first mark, by the host."""
        before, self._looked = self._looked, time.perf_counter()
        return 0.0 if before is None else self._looked - before
