"""Show the sections of a recorded run again, or write them into the documentation.

python -m benches.compare.show benches/results/FILE.json [--into docs/performance.md]
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from . import aims, blocks, pages, record, sections

BLOCK = "sections"


def tables(document: dict[str, Any]) -> Iterator[Table]:
    """Yield the tables of all sections, in the order of a run."""
    for name, section in sections.ALL.items():
        for measured in document["sections"].get(name, []):
            yield section.table(measured)


def markdown(table: Table) -> list[str]:
    """Return a table's title, its rows and its caption as lines of Markdown."""
    rows = [[str(cell) for cell in column.cells] for column in table.columns]
    headings = [str(column.header) for column in table.columns]
    right = [column.justify == "right" for column in table.columns]
    lines = pages.table(headings, zip(*rows, strict=True), right=right)
    caption = [str(table.caption), ""] if table.caption else []
    return [f"**{table.title}**", "", *lines, "", *caption]


def page(document: dict[str, Any], path: str) -> list[str]:
    """Return all sections as lines of Markdown, followed by their source."""
    lines = [line for table in tables(document) for line in markdown(table)]
    return [*lines, f"From `{path}`."]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--into", type=Path, help="rewrite the tables in this file")
    chosen = parser.parse_args()
    document = record.read(chosen.file)
    if chosen.into:
        path = chosen.file.resolve().relative_to(blocks.ROOT).as_posix()
        blocks.replace(chosen.into, BLOCK, page(document, path))
        return
    console = Console(width=None if Console().is_terminal else 170)
    for table in (*tables(document), aims.table(document)):
        console.print(table)


if __name__ == "__main__":
    main()
