"""Show progress: a live bar on a terminal, an occasional line otherwise."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

QUIET_SECONDS = 10.0  # between two lines if there is no terminal


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


class Reporter:
    """Progress on a console, as a context manager that removes the live bar on exit."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = console.is_terminal
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.percentage:3.0f} %"),
            TextColumn("{task.fields[state]}", markup=False),
            TimeElapsedColumn(),
            console=console,
            transient=True,
        )
        self._task = self._bar.add_task("starting processes", total=1.0, state="")
        self._label, self._steps, self._said = "", 0, 0.0

    def note(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False)

    def begin(self, label: str, steps: int) -> None:
        self._label, self._steps, self._said = label, steps, time.monotonic()
        self._bar.update(self._task, description=label.ljust(24), state="")

    def advance(self, step: int, loss: float, share: float, left: float) -> None:
        state = f"step {step}/{self._steps}  loss {loss:.3f}  {_clock(left)} left"
        if self._live:
            self._bar.update(self._task, completed=share, state=state)
        elif time.monotonic() - self._said >= QUIET_SECONDS:
            self._said = time.monotonic()
            self.note(f"  [{100 * share:3.0f} %] {self._label}: {state}")

    def end(self, summary: str) -> None:
        self.note(f"  {self._label}: {summary}")

    def __enter__(self) -> Self:
        if self._live:
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        if self._live:
            self._bar.stop()
