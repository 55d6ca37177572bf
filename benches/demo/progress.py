"""Show progress: one line that is overwritten on a terminal, an occasional line otherwise."""

import time

from rich.console import Console

from benches.harness.command import progress

QUIET_SECONDS = 10.0  # between two lines if there is no terminal


class Reporter:
    """Progress on a console."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._label, self._steps, self._said = "", 0, 0.0

    def note(self, text: str) -> None:
        progress("")
        self._console.print(text, highlight=False, markup=False)

    def begin(self, label: str, steps: int) -> None:
        self._label, self._steps, self._said = label, steps, time.monotonic()

    def advance(self, step: int, loss: float, share: float, left: float) -> None:
        """Tell how far a run is, and all of them, with the seconds that are left."""
        clock = f"{int(left) // 60}:{int(left) % 60:02d} left"
        text = f"[{share:4.0%}] {self._label}: step {step}/{self._steps}  loss {loss:.3f}  {clock}"
        progress(text)
        if not self._console.is_terminal and time.monotonic() - self._said >= QUIET_SECONDS:
            self._said = time.monotonic()
            self.note(f"  {text}")

    def end(self, summary: str) -> None:
        self.note(f"  {self._label}: {summary}")
