"""Programs to copy: ``python -m gradwire.examples`` lists them, with NAME it writes one out."""

import argparse
import ast
import difflib
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from gradwire.cli.terminal import printing

__all__ = ["main"]

ROOT = Path(__file__).parents[2]
FOLDER = (
    ROOT / "examples" if (ROOT / "Cargo.toml").is_file() else Path(__file__).with_name("_examples")
)
"""In a checkout they are at the top, in a wheel next to this file."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line, and return its exit code: 2 for an unknown name, 1 for a failed write."""
    return printing("python -m gradwire.examples", lambda: _run(argv))


def _run(argv: Sequence[str] | None) -> int:
    parser = argparse.ArgumentParser("python -m gradwire.examples", description=__doc__)
    parser.add_argument("name", nargs="?", metavar="NAME", help="as listed without any")
    parser.add_argument("-o", dest="file", type=Path, metavar="FILE", help="not its own name")
    options, examples = parser.parse_args(argv), files()
    if options.name is None:
        width = max((len(file.name) for file in examples.values()), default=0)
        for file in examples.values():
            print(f"{file.name:{width}}  {summary(file)}")
        return 0
    if (source := examples.get(options.name.partition(".")[0])) is None:
        near = difflib.get_close_matches(options.name, examples, 1)
        hint = f"did you mean {near[0]!r}?" if near else "without NAME, this command lists them"
        parser.error(f"there is no example {options.name!r}: {hint}")
    target = options.file or Path(source.name)
    try:
        with target.open("xb") as output:
            output.write(source.read_bytes())
    except FileExistsError:
        print(f"error: {target} already exists: name another file with -o FILE", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"error: {target}: {error.strerror}", file=sys.stderr)
        return 1
    print(f"wrote {target}; its beginning explains how to start it")
    return 0


def files() -> dict[str, Path]:
    paths = (path for path in FOLDER.glob("*.*") if path.is_file() and path.suffix != ".md")
    return {path.stem: path for path in sorted(paths)}


def summary(file: Path) -> str:
    """Return what an example says first."""
    text = file.read_text("utf-8")
    if file.suffix == ".py":
        text = ast.get_docstring(ast.parse(text)) or ""
    elif file.suffix == ".ipynb":
        text = "".join(json.loads(text)["cells"][0]["source"])
    lines = (line.strip("# ") for line in text.splitlines() if not line.startswith("#!"))
    return next(filter(None, lines), "").replace("examples/", "")


if __name__ == "__main__":
    sys.exit(main())
