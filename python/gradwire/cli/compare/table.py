"""The figures of a comparison as rows, for a terminal and for a document."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table

from gradwire.cli.compare.results import LEEWAY, Comparison, Entry

__all__ = ["HEADINGS", "print_table", "reading", "row"]

HEADINGS = (
    "method",
    "kB a step",
    "times fewer",
    "bits an entry",
    "encode ms",
    "decode ms",
    "loss",
    "accuracy %",
    "behind",
)


def row(comparison: Comparison, entry: Entry) -> list[str]:
    """Return one run's figures in the order of `HEADINGS`."""

    def milliseconds(value: float | None) -> str:
        return "" if value is None else f"{value:.2f}"

    return [
        entry.label,
        f"{entry.bytes_per_step / 1e3:.1f}",
        f"{entry.ratio:.1f}",
        f"{32 / entry.ratio:.2f}",
        milliseconds(entry.encode_ms),
        milliseconds(entry.decode_ms),
        f"{entry.loss:.3f}",
        f"{100 * entry.accuracy:.1f}",
        f"{100 * comparison.behind(entry):+.1f}",
    ]


def print_table(comparison: Comparison, console: Console) -> None:
    """Print a table for each task, and what it comes to."""
    for task in comparison.tasks:
        entries = comparison.of(task)
        table = Table(
            title=f"{task}, {entries[0].steps} steps, {comparison.settings['ranks']} ranks",
            title_justify="left",
            title_style="bold",
            box=box.SIMPLE_HEAD,
            pad_edge=False,
        )
        for heading in HEADINGS:
            table.add_column(heading, justify="left" if heading == "method" else "right")
        for entry in entries:
            table.add_row(*row(comparison, entry))
        console.print()
        console.print(table)
    for line in reading(comparison):
        console.print(f"* {line}", highlight=False)


def reading(comparison: Comparison) -> list[str]:
    """Return in words which presets learn less than they should, and whether replicas agree."""
    lines = []
    for task in comparison.tasks:
        fed_back = [entry for entry in comparison.of(task) if entry.feedback]
        short = [entry for entry in fed_back if comparison.behind(entry) > LEEWAY]
        points = f"{100 * LEEWAY:.1f} points of the accuracy of no compression"
        if not fed_back:
            continue
        if short:
            named = ", ".join(f"{e.method} ({100 * comparison.behind(e):.1f})" for e in short)
            lines.append(f"{task}: with error feedback, not within {points}: {named}.")
        else:
            lines.append(f"{task}: every preset with error feedback is within {points}.")
    broken = [f"{e.task}/{e.method}" for e in comparison.entries if not e.replicas_identical]
    if broken:
        lines.append(f"WARNING: the ranks' models differ after {', '.join(broken)}: report it.")
    else:
        lines.append("In every run all ranks ended with bit-identical models.")
    return lines
