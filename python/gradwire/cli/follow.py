"""``gradwire follow FOLDER FILE``: keep a file at the newest version of a publisher."""

import argparse
import math
import sys
from collections.abc import Sequence

from gradwire import weights
from gradwire.delta import Follower
from gradwire.errors import GradwireError


def main(argv: Sequence[str]) -> int:
    """Follow a folder until Ctrl-C; return 1 if files are damaged, or cannot be read or written."""
    options = make_parser().parse_args(argv)
    follower = Follower(options.folder)
    try:
        model = follower.blank(options.timeout)
        while (before := follower.step) is None or not options.once:
            step = follower.pull(model, math.inf if before is not None else options.timeout)
            if step != before:
                weights.save(options.target, model, {"step": str(step)})
                print(f"{options.target}: step {step}", flush=True)
    except (OSError, ValueError, GradwireError) as error:
        print(f"gradwire follow: {error}", file=sys.stderr)
        return 1
    return 0


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="gradwire follow",
        description="Keep a safetensors file at the newest version that a gradwire.delta.Publisher "
        "has written: it is replaced by each, complete.",
    )
    parser.add_argument("folder", metavar="FOLDER", help="the publisher's, or a copy of it")
    parser.add_argument("target", metavar="FILE", help="the file to write")
    parser.add_argument("--once", action="store_true", help="write the newest version, and end")
    parser.add_argument(
        "--timeout", type=float, default=60.0, metavar="S", help="wait for a first version (60 s)"
    )
    return parser
