"""Commands whose processes and links are gone when they are asked to stop."""

import sys
from collections.abc import Callable

from benches.harness.signals import terminate_as_interrupt

__all__ = ["INTERRUPTED", "run"]

INTERRUPTED = 130
"""Exit status, as a shell has it for a command that Ctrl-C ended."""


def run(main: Callable[[], None]) -> int:
    """Call a command; on SIGTERM or Ctrl-C, let it close what it has opened.

    Returns
    -------
    int
        Exit status.
    """
    try:
        with terminate_as_interrupt():
            main()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    return 0
