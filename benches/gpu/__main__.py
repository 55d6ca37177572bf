"""Measure the CUDA extension: ``make bench-gpu``, or ``python -m benches.gpu --help``.

Nothing is installed: torch, numpy and gradwire are enough, and a library of the extension, which
``GRADWIRE_CUDA_LIBRARY`` may name.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import gradwire.torch
from benches.harness import results

from . import record, show
from .measure import SECTIONS, Setup, by_events, guarded


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench-gpu ARGS=...", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="25 M entries in place of 100 M, and fewer rounds"
    )
    parser.add_argument(
        "--sections",
        nargs="+",
        choices=SECTIONS,
        default=list(SECTIONS),
        metavar="S",
        help=f"sections to run (default: all): {', '.join(SECTIONS)}",
    )
    parser.add_argument("--rounds", type=int, help="rounds that count (default: 31, quick 11)")
    parser.add_argument("--out", type=Path, help="file to write in place of results/DATE-CHIP.json")
    return parser.parse_args(given)


def hindrance() -> str | None:
    """Return why nothing can be measured here."""
    if not torch.cuda.is_available():
        return "no GPU here: nothing was measured"
    torch.cuda.init()  # type: ignore[no-untyped-call]
    used = gradwire.torch.backend("cuda")
    return None if used.name == "cuda" else f"nothing was measured: {used.reason}"


def measure(setup: Setup, sections: Sequence[str], out: Path | None) -> tuple[Path, dict[str, Any]]:
    """Run sections, and write what there is after each: the device may not last."""
    document = record.document(setup)
    path = out or record.default_path(document)
    for name in sections:
        with guarded(document["failed"], name):
            document["sections"][name] = SECTIONS[name](setup, _say, document["failed"])
        results.write(document, path)
    return path, results.read(path)


def _say(what: str) -> None:
    print(f"bench-gpu: {what}", file=sys.stderr, flush=True)


def main(given: Sequence[str] | None = None) -> int:
    chosen = arguments(given)
    if (reason := hindrance()) is not None:
        print(f"bench-gpu: {reason}", file=sys.stderr)
        return 2
    rounds = chosen.rounds or (11 if chosen.quick else 31)
    numel = 25_000_000 if chosen.quick else 100_000_000
    setup = Setup("cuda", by_events, numel, rounds, warm_up=10)
    path, document = measure(setup, chosen.sections, chosen.out)
    print(show.text(document))
    print(f"Written: {path}")
    return 1 if document["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
