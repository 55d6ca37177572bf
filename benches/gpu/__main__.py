"""Measure the CUDA extension: ``make bench-gpu``, or ``python -m benches.gpu --help``.

Nothing is installed: torch, numpy and gradwire are enough, and a library of the extension, which
``GRADWIRE_CUDA_LIBRARY`` may name.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

import gradwire.torch
from benches.harness import results
from benches.harness.command import command_line
from benches.harness.pages import span

from .measure import SECTIONS, Setup, by_events, default_path, guarded, new_document


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = command_line("make bench-gpu ARGS=...", __doc__)
    # fmt: off
    parser.add_argument("--quick", action="store_true",
                        help="25 M entries in place of 100 M, and fewer rounds")
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=list(SECTIONS),
                        metavar="S", help=f"of {', '.join(SECTIONS)} (default: all)")
    parser.add_argument("--rounds", type=int, help="rounds that count (default: 31, quick 11)")
    parser.add_argument("--out", type=Path, help="file to write in place of results/DATE-CHIP.json")
    parser.add_argument("--show", type=Path, metavar="FILE", help="measure nothing: show a file")
    # fmt: on
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
    document = new_document(setup)
    path = out or default_path(document)
    for name in sections:
        with guarded(document["failed"], name):
            document["sections"][name] = SECTIONS[name](setup, _say, document["failed"])
        results.write(document, path)
    return path, results.read(path)


def _say(what: str) -> None:
    print(f"bench-gpu: {what}", file=sys.stderr, flush=True)


HEADINGS = ("", "device", "/ copy", "sent", "bits/sent", "setting")
TITLES = {
    "aims": "Encode with a residual, ratio 0.01",
    "receive": "Decode and add, ratio 0.01",
    "presets": "Every preset",
}


def sections(document: dict[str, Any]) -> Iterator[tuple[str, list[list[str]]]]:
    for name, title in TITLES.items():
        if measured := document["sections"].get(name):
            rows = [{"name": "copy", **measured["copy"]}, *measured["rows"]]
            cells = [_cells(row, measured["numel"]) for row in rows]
            yield f"{title}: {measured['numel']:,} float32", cells


def _cells(row: dict[str, Any], numel: int) -> list[str]:
    cells = [row["name"], span(row["seconds"]), f"{row['copies']:.2f}"]
    if "count" in row:
        bits = 8 * row["nbytes"] / max(1, row["count"])
        cells += [f"{100 * row['count'] / numel:.3g} %", f"{bits:.1f}"]
    else:
        cells += ["", ""]
    setting = row.get("setting", "")
    if "aim" in row:
        setting += f"; aim {row['aim']} copies; the read has at least, an entry, "
        setting += f"{row['bytes_per_entry']} bytes ({row['copies_by_bytes']:.2f} copies)"
    return [*cells, setting]


def head(document: dict[str, Any]) -> str:
    machine, versions = document["machine"], document["versions"]
    failed = [f"{name} failed: {why.splitlines()[0]}" for name, why in document["failed"].items()]
    text = (
        f"{machine['chip']}, driver {machine['driver']}, CUDA {machine['cuda']}, torch "
        f"{versions['torch']}, gradwire {versions['gradwire']}; {document['date'][:10]}."
    )
    return "\n\n".join([text, *failed])


def text(document: dict[str, Any]) -> str:
    """Return all tables for a terminal, which takes no library."""
    lines = [head(document)]
    for title, cells in sections(document):
        wide = [max(map(len, column)) for column in zip(HEADINGS, *cells, strict=True)]
        lines += ["", title]
        lines += ["  ".join(map(str.ljust, row, wide)).rstrip() for row in (HEADINGS, *cells)]
    return "\n".join(lines)


def main(given: Sequence[str] | None = None) -> int:
    chosen = arguments(given)
    if chosen.show is not None:
        print(text(results.read(chosen.show)))
        return 0
    if (reason := hindrance()) is not None:
        print(f"bench-gpu: {reason}", file=sys.stderr)
        return 2
    rounds = chosen.rounds or (11 if chosen.quick else 31)
    numel = 25_000_000 if chosen.quick else 100_000_000
    setup = Setup("cuda", by_events, numel, rounds, warm_up=10)
    path, document = measure(setup, chosen.sections, chosen.out)
    print(text(document))
    print(f"Written: {path}")
    return 1 if document["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
