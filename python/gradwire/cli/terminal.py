"""The terminal: output that nobody reads, and a progress line for long commands."""

import os
import shutil
import sys
from collections.abc import Callable
from typing import Self


def printing(program: str, run: Callable[[], int]) -> int:
    """Run a command that prints, and return its exit code.

    A reader that closes the pipe early, such as ``| head``, ends the command quietly with 0.
    """
    try:
        try:
            return run()
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()  # what fails here would otherwise be reported when Python exits
    except KeyboardInterrupt:
        return 130
    except OSError as error:
        if error.filename is not None and not isinstance(error, BrokenPipeError):
            raise  # of a file, not of what is printed
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            os.dup2(nowhere, sys.stderr.fileno())  # it may go to the same reader
            return 0
        print(f"{program}: cannot write the output: {error.strerror}", file=sys.stderr)
        return 1


class ProgressLine:
    """Shows progress on stderr, in a line that is rewritten, and removed at the end.

    Shows nothing if stderr is not a terminal.
    """

    def __init__(self, command: str) -> None:
        self._command = command
        self._length = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._write("")  # spaces over the line
        self._write("")  # and back to where it began

    def __call__(self, what: str, done: float) -> None:
        """Show one line: the current task, and the share done."""
        self._write(f"{self._command}: {done:4.0%} {what}")

    def _write(self, line: str) -> None:
        if sys.stderr is None or not sys.stderr.isatty():
            return
        # A full line would wrap, and not be rewritten.
        line = line[: max(shutil.get_terminal_size().columns, 20) - 1]
        sys.stderr.write(f"\r{line.ljust(self._length)}")
        sys.stderr.flush()
        self._length = len(line)
