"""What every command that trains does around its training: libraries, a console, an orderly end."""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["OutputError", "conduct", "console", "folder"]

# Everything beyond numpy that is used; looked for before anything starts. The name to import, the
# name to say.
_NEEDS = {"torch": "torch", "sklearn": "scikit-learn", "rich": "rich", "matplotlib": "matplotlib"}


class OutputError(Exception):
    """Results cannot be written; the message is for the person at the terminal."""


def folder(path: Path) -> Path:
    """Make the folder that results go to, before anything is measured.

    Raises
    ------
    OutputError
        There is something else of that name, or no right to write there.
    """
    if path.exists() and not path.is_dir():
        raise OutputError(f"--out {path} is not a folder; name one, which need not exist yet")
    try:
        path.mkdir(parents=True, exist_ok=True)
        # Rights on paper are not enough: the file system may be read-only.
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise OutputError(f"cannot write to --out {path}: {error.strerror}") from None
    return path


def _missing() -> list[str]:
    return [said for name, said in _NEEDS.items() if importlib.util.find_spec(name) is None]


def conduct(command: str, what: Callable[[], int]) -> int:
    """Run a command and return its exit status; what goes wrong is a line on stderr."""
    if missing := _missing():
        print(f"{command} needs {', '.join(missing)}: pip install 'gradwire[all]'", file=sys.stderr)
        return 2
    from gradwire.cli.training.namespaces import LinkUnavailableError
    from gradwire.cli.training.processes import RankError
    from gradwire.cli.training.signals import terminate_as_interrupt

    try:
        with terminate_as_interrupt():
            return what()
    except (OutputError, RankError) as error:
        print(f"{command}: {error}", file=sys.stderr)
        return 1
    except LinkUnavailableError as error:
        print(f"{command}: the link between the ranks is gone: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        raise
    except OSError as error:
        where = "" if error.filename is None else f"{error.filename}: "
        print(f"{command}: {where}{error.strerror or error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"{command}: interrupted; processes and links are gone", file=sys.stderr)
        return 130


def console(*, stderr: bool) -> Console:
    """Return where tables and progress go, wide enough for both where there is no terminal."""
    from rich.console import Console

    made = Console(stderr=stderr)
    return made if made.is_terminal else Console(stderr=stderr, width=120)
