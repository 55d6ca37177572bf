"""Show a recorded run again, or write it into the documentation.

python -m benches.gpu.show benches/results/FILE.json [--into docs/cuda.md]
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benches.compare import aim, blocks, files, pages
from benches.compare.pages import span

from .aims import AIMS, ONCE

BLOCK = "gpu"
TITLES = {
    "contest": "Encode with a residual, ratio 0.001",
    "bucket": "A bucket of {parameters} parameters, top-k, ratio 0.001",
    "small": "A small tensor, ratio 0.001",
    "receive": "Decode and add, ratio 0.01",
    "presets": "Every preset",
}


def page(document: dict[str, Any], path: str) -> list[str]:
    """Return the aims and all sections as lines of Markdown, and their source."""
    return [*tables(document), f"From `{path}`."]


def tables(document: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of all tables that the run has."""
    machine, versions = document["machine"], document["versions"]
    yield (
        f"{machine['chip']}, driver {machine['driver']}, CUDA {machine['cuda']}, torch "
        f"{versions['torch']}, gradwire {versions['gradwire']}; {document['date'][:10]}."
    )
    yield ""
    rows = aim.rows(AIMS, document, ONCE)
    headings = (f"{document['sizes']['large']:,} float32", "aim", "reached")
    yield from aim.lines(headings, rows)
    for name, title in TITLES.items():
        if measured := document["sections"].get(name):
            yield ""
            yield f"**{title.format(**measured)}**: {measured['numel']:,} float32"
            yield ""
            yield from section(measured)
    yield ""
    for name, reason in document["failed"].items():
        yield f"**{name}** failed: {reason.splitlines()[0]}"
        yield ""


def section(measured: dict[str, Any]) -> list[str]:
    """Return the table of a section."""
    rows = measured["rows"]
    sent, called = (any(key in row for row in rows) for key in ("count", "call"))
    cells = [["copy", span(measured["copy"]["median"]), "1.00", *[""] * (3 * sent + called)]]
    for row in rows:
        line = [row["name"], span(row["seconds"]["median"]), f"{row['copies']['median']:.2f}"]
        if sent:
            entries = f"{100 * row['count'] / measured['numel']:.3g} %"
            bits = f"{8 * row['nbytes'] / max(1, row['count']):.1f}"
            line += [
                entries,
                bits,
                f"`{row['setting']}`" if "(" in row["setting"] else row["setting"],
            ]
        if called:
            line.append(span(row["call"]) if "call" in row else "")
        cells.append(line)
    headings = ["", "device", "/ copy", *(["sent", "bits/sent", "setting"] if sent else [])]
    return pages.table([*headings, *(["call"] if called else [])], cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--into", type=Path, help="rewrite the tables in this file")
    chosen = parser.parse_args()
    document = files.read(chosen.file)
    if chosen.into:
        path = chosen.file.resolve().relative_to(blocks.ROOT).as_posix()
        blocks.replace(chosen.into, BLOCK, page(document, path))
        return
    print("\n".join(tables(document)))


if __name__ == "__main__":
    main()
