"""What every command that trains does around its training: libraries, a console, an orderly end."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["conduct", "console"]

# Everything beyond numpy that is used; looked for before anything starts. The name to import, the
# name to say.
_NEEDS = {"torch": "torch", "sklearn": "scikit-learn", "rich": "rich", "matplotlib": "matplotlib"}


def _missing() -> list[str]:
    return [said for name, said in _NEEDS.items() if importlib.util.find_spec(name) is None]


def conduct(command: str, what: Callable[[], int]) -> int:
    """Run a command and return its exit status; what goes wrong is a line on stderr."""
    if missing := _missing():
        print(f"{command} needs {', '.join(missing)}: pip install 'gradwire[all]'", file=sys.stderr)
        return 2
    from gradwire.cli.training.processes import RankError
    from gradwire.cli.training.signals import terminate_as_interrupt

    try:
        with terminate_as_interrupt():
            return what()
    except RankError as error:
        print(f"{command}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"{command}: interrupted; processes and links are gone", file=sys.stderr)
        return 130


def console(*, stderr: bool) -> Console:
    """Return where tables and progress go, wide enough for both where there is no terminal."""
    from rich.console import Console

    made = Console(stderr=stderr)
    return made if made.is_terminal else Console(stderr=stderr, width=120)
