"""The table of a comparison: one for each case, and the few rows of the README."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from benches.harness import pages, results
from benches.harness.pages import span

from .laws import HEADLINE

Row = Mapping[str, Any]

COPY = "plain copy"
CASE = ("law", "numel", "ratio", "threads")

SHOWN = {
    COPY: COPY,
    "gradwire adam": "**gradwire adam**, Adam's step included",
    "gradwire topk": "**gradwire topk** (exact)",
    "gradwire sidco": "**gradwire sidco**",
    "DGC sampling": "DGC's sampling, in torch",
    "torch PowerSGD, rank 4": "torch's PowerSGD hook, rank 4",
    "torch.topk": "`torch.topk`",
}
"""Rows of the README, in its order."""


def table(rows: Sequence[Row]) -> str:
    """Return the table of a case."""
    law, numel, ratio, threads = (rows[0][name] for name in CASE)
    headings = ("encode with residual", "median", "least - most", "/ copy", "decode / copy",
                "sent / asked", "bits/entry", "MB", "setting")  # fmt: skip
    cells = [_cells(row, max(1, int(numel * ratio)), numel) for row in rows]
    title = f"**{law}, {numel:,} float32, ratio {ratio:g}, threads: {threads}**"
    return f"{title}\n\n{pages.table(headings, cells)}"


def _cells(row: Row, asked: int, numel: int) -> list[str]:
    between = f"{span(row['least'])} - {span(row['most'])}"
    cells = [row["name"], span(row["seconds"]), between, f"{row['copies']:.2f}"]
    if row["name"] == COPY:
        return [*cells, "", "", "", "", ""]
    nbytes, count = row["nbytes"], row["count"]
    return [
        *cells,
        f"{row['decode_copies']:.3f}",
        "all" if count == numel else f"{count / asked:.2f}",
        f"{8 * nbytes / max(1, count):.3g}",
        f"{nbytes / 1e6:.3g}",
        row["setting"],
    ]


def page(document: Mapping[str, Any]) -> str:
    """Return the tables of all cases."""
    groups = groupby(document["rows"], key=lambda row: [row[name] for name in CASE])
    return "\n\n".join(table(list(rows)) for _, rows in groups)


def readme(document: Mapping[str, Any], path: Path | None) -> str:
    """Return the README's block: 25 M entries at one per cent on one thread."""
    case = [HEADLINE, 25_000_000, 0.01, 1]
    found = {row["name"]: row for row in document["rows"] if [row[name] for name in CASE] == case}
    rows = []
    for name, title in SHOWN.items():
        row = found[name]
        copies = f"{row['copies']:.{0 if row['copies'] >= 10 else 1}f}"
        sent = f"{row['nbytes'] / 1e6:.3g}" if "nbytes" in row else ""
        rows.append([title, sent, span(row["seconds"]), copies])
    shown = pages.table(["", "MB per step", "encode", "in copies"], rows)
    data = "" if path is None else f"; [all figures]({results.relative(path)})"
    where = f"{results.where(document['machine'])}, {document['date'][:10]}"
    return f"{shown}\n\nBy `make bench` ({where}{data})."
