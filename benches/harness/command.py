"""Frame of every command that trains: check libraries, report errors, show progress."""

from __future__ import annotations

import argparse
import importlib.util
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType

INTERRUPTED = 130
"""Exit status, as a shell has it for a command that Ctrl-C ended."""

# Everything needed beyond numpy, checked before anything starts: import name, package name.
_NEEDS = {"torch": "torch", "sklearn": "scikit-learn", "matplotlib": "matplotlib"}


def command_line(command: str, about: str | None) -> argparse.ArgumentParser:
    """Return the command line of a command, whose help begins with this text as it stands."""
    return argparse.ArgumentParser(
        prog=command, description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )


@contextmanager
def terminate_as_interrupt() -> Iterator[None]:
    """Raise KeyboardInterrupt on SIGTERM, as Ctrl-C does, so that ranks and links are closed."""

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _missing() -> list[str]:
    return [said for name, said in _NEEDS.items() if importlib.util.find_spec(name) is None]


def conduct(
    command: str,
    what: Callable[[], int],
    errors: tuple[type[Exception], ...] = (),
    interrupted: str = "processes and links were removed",
) -> int:
    """Run a command and return its exit status; report errors in a line on stderr.

    ``errors`` are further ones whose messages are meant for the user.
    """
    if missing := _missing():
        named = f"{', '.join(missing)}: pip install {' '.join(missing)}"
        print(f"{command} needs {named}", file=sys.stderr)
        return 2
    from benches.harness.link import LinkUnavailableError
    from benches.harness.processes import RankError

    expected: tuple[type[Exception], ...] = (RankError, *errors)
    try:
        with terminate_as_interrupt():
            return what()
    except expected as error:
        print(f"{command}: {error}", file=sys.stderr)
        return 1
    except LinkUnavailableError as error:
        print(f"{command}: the link between the ranks failed: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # The reader closed the pipe (`| head`), which is no error. Without this line Python would
        # report it again when it flushes at exit.
        sys.stdout = None
        return 0
    except OSError as error:
        where = "" if error.filename is None else f"{error.filename}: "
        print(f"{command}: {where}{error.strerror or error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"{command}: interrupted; {interrupted}", file=sys.stderr)
        return INTERRUPTED


def progress(text: str) -> None:
    """Overwrite one line of a terminal; elsewhere say nothing."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K  {text}", end="", file=sys.stderr, flush=True)
