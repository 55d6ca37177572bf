"""Show a recorded run again, or write it into the documentation.

python -m benches.gpu.show benches/results/FILE.json [--into docs/cuda.md]
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benches.harness import pages, results
from benches.harness.pages import span

HEADINGS = ("", "device", "/ copy", "sent", "bits/sent", "setting")
TITLES = {
    "contest": "Encode with a residual, ratio 0.001",
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
    return [*cells, row.get("setting", "")]


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


def page(document: dict[str, Any], path: Path) -> str:
    """Return all tables for the documentation, and their source."""
    parts = [f"**{title}**\n\n{pages.table(HEADINGS, rows)}" for title, rows in sections(document)]
    return "\n\n".join([head(document), *parts, f"From `{results.relative(path)}`."])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--into", type=Path, help="rewrite the tables in this file")
    chosen = parser.parse_args()
    document = results.read(chosen.file)
    print(text(document))
    if chosen.into:
        pages.replace(chosen.into, "gpu", page(document, chosen.file))


if __name__ == "__main__":
    main()
