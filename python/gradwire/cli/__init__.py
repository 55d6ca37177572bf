"""The command line: ``gradwire COMMAND``.

Each command is a module with ``main(argv) -> exit code`` and ``make_parser()``. It is imported only
when called, so that ``gradwire inspect`` does not load what ``gradwire plan`` computes with.
"""

import argparse
import importlib
import sys
from collections.abc import Sequence

import gradwire
from gradwire.cli.terminal import printing

__all__ = ["main"]


COMMANDS = {
    "inspect": "print the contents of a frame or weight file, or why it is corrupt",
    "codecs": "list the presets and their papers",
    "plan": "predict the step time with each codec, for many ranks and any link",
    "pack": "pack the weights of a safetensors file into a few bits each",
    "unpack": "unpack packed weights to floats",
    "follow": "keep a file at the newest version of a model that a trainer publishes",
    "info": "print versions and devices for a bug report",
}
"""A summary of each command, by the name of its module."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line, by default the process's own, and return its exit code.

    The code is 0 on success, 1 if the command reports an error, and 2 for an invalid command line.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)

    def run() -> int:
        if not arguments:
            _parser().print_help(sys.stderr)
            raise SystemExit(2)
        options = _parser().parse_args(arguments[:1])
        module = importlib.import_module(f"gradwire.cli.{options.command}")
        return int(module.main(arguments[1:]))

    return printing("gradwire", run)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gradwire",
        description="Compress tensors for sending over a network.",
        epilog="commands:\n"
        + "\n".join(f"  {name:<12}{summary}" for name, summary in COMMANDS.items())
        + "\n\nRun `gradwire COMMAND --help` for the options of a command.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"gradwire {gradwire.__version__}")
    # No subparsers: they would need the options, and so the import, of every command.
    parser.add_argument("command", metavar="COMMAND", choices=COMMANDS, help="see below")
    return parser
