"""The command line: ``gradwire COMMAND``.

Each command is a module with ``main(argv) -> exit code`` that is imported when it is called, so
that ``gradwire inspect`` never waits for what ``gradwire demo`` needs.
"""

import argparse
import importlib
import sys
from collections.abc import Sequence
from typing import NamedTuple

import gradwire

__all__ = ["main"]


class _Command(NamedTuple):
    module: str
    summary: str


_COMMANDS = {
    "inspect": _Command("gradwire.cli.inspect", "print what is in a frame, or why it is corrupt"),
    "codecs": _Command("gradwire.cli.codecs", "list the presets and their papers"),
    "demo": _Command(
        "gradwire.cli.demo", "train over a slow link, with and without compression (needs torch)"
    ),
    "compare": _Command(
        "gradwire.cli.compare", "train with every preset and compare them (needs torch)"
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line, that of the process by default; return its exit code.

    0 means success, 1 that the command found something wrong, 2 a wrong command line.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    options = _parser().parse_args(arguments[:1])
    module = importlib.import_module(_COMMANDS[options.command].module)
    try:
        return int(module.main(arguments[1:]))
    except BrokenPipeError:
        # The reader of our output has gone (`| head`): nothing is wrong. Python would complain
        # once more when it flushes at exit.
        sys.stdout = None
        return 0
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gradwire",
        description="Compression codecs for tensors that have to cross a wire.",
        epilog="commands:\n"
        + "\n".join(f"  {name:<10}{command.summary}" for name, command in _COMMANDS.items())
        + "\n\n`gradwire COMMAND --help` says more about one.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"gradwire {gradwire.__version__}")
    # Not subparsers: those would have to import every command to know its options.
    parser.add_argument("command", metavar="COMMAND", choices=_COMMANDS, help="see below")
    return parser
