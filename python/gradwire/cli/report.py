"""``gradwire report FILE``: turn a report that was saved as JSON into a page for a browser."""

import argparse
import sys
import webbrowser
from collections.abc import Sequence
from pathlib import Path

from gradwire import _files
from gradwire.report import Report, page, read

_LARGEST = 1 << 28  # bytes of a file: reports of thousands of ranks


def main(argv: Sequence[str]) -> int:
    """Write a page; return 0, or 1 if a file is not a report or cannot be read or written."""
    parser = make_parser()
    options = parser.parse_args(argv)
    output = options.output or _beside(options.files[0])
    if output is None:
        parser.error("standard input gives the page no name: add --output PAGE")
    if options.open and output == "-":
        parser.error("--open needs a file: leave out --output -")
    found: list[Report] = []
    for file in options.files:
        try:
            found += read(_files.read_text(file, _LARGEST))
        except OSError as error:
            return _fail(f"cannot read {file}: {error.strerror}")
        except ValueError as error:
            return _fail(f"{file}: {error}")
    shown = page(found)
    if output == "-":
        print(shown, end="")
        return 0
    try:
        _write(Path(output), shown)
    except OSError as error:
        return _fail(f"cannot write {output}: {error.strerror}")
    print(output)
    if options.open and not webbrowser.open(Path(output).resolve().as_uri()):
        return _fail("there is no browser to open it in")
    return 0


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="gradwire report",
        description="Write handle.report() as one HTML page that opens offline. To get FILE, save "
        "handle.report().to_json() on one or more ranks.",
    )
    parser.add_argument(
        "files", metavar="FILE", nargs="+", help="JSON of one or more reports; - for standard input"
    )
    parser.add_argument(
        "-o", "--output", metavar="PAGE", help="default: FILE with .html; - prints the page"
    )
    parser.add_argument("--open", action="store_true", help="open the page in a browser")
    return parser


def _beside(file: str) -> str | None:
    if file == "-":
        return None
    path = Path(file)
    return str(path.with_name(f"{path.name.removesuffix('.json')}.html"))


def _write(path: Path, shown: str) -> None:
    """Write a page, but do not overwrite a file that is not one."""
    if path.is_file():
        with path.open("rb") as file:
            head = file.read(15)
        if head and head.lower() != b"<!doctype html>":
            what = "it exists and is not a page: name another file with --output"
            raise FileExistsError(17, what)
    _files.write(path, shown)


def _fail(message: str) -> int:
    print(f"gradwire report: {message}", file=sys.stderr)
    return 1
