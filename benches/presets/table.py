"""Format the figures of a comparison as rows, for a terminal and for a document."""

from __future__ import annotations

from rich.console import Console

from benches.harness.tables import about, table, training_table
from benches.harness.trained import replicas
from benches.presets.results import LEEWAY, Results, Summary

__all__ = ["HEADINGS", "print_table", "reading", "row"]

HEADINGS = (
    "method",
    "kB per step",
    "compression",
    "encode ms",
    "decode ms",
    "loss",
    "accuracy %",
    "points behind",
)


def row(summary: Summary) -> list[str]:
    """Return one method's figures in the order of `HEADINGS`."""

    def milliseconds(value: float | None) -> str:
        return "" if value is None else f"{value:.2f}"

    return [
        summary.label,
        f"{summary.bytes_per_step / 1e3:.1f}",
        f"{summary.ratio:.1f}",
        milliseconds(summary.encode_ms),
        milliseconds(summary.decode_ms),
        f"{summary.loss:.3f}",
        f"{100 * summary.accuracy:.1f}",
        _behind(summary),
    ]


def _behind(summary: Summary) -> str:
    mean, low, high = (
        f"{round(100 * part, 1) + 0.0:+.1f}"  # never -0.0
        for part in (summary.mean_behind, min(summary.behind), max(summary.behind))
    )
    return mean if len(summary.behind) == 1 else f"{mean} ({low} to {high})"


def print_table(results: Results, console: Console) -> None:
    """Print a table per task, what was used to train, and the lines of `reading`."""
    seeds = results.settings.get("seeds", 1)
    for task in results.tasks:
        methods = results.of(task)
        runs = f", {seeds} seeds" if seeds > 1 else ""
        title = f"{task}, {methods[0].steps} steps, {results.settings['ranks']} ranks{runs}"
        console.print()
        console.print(table(title, HEADINGS, [row(summary) for summary in methods]))
        console.print(training_table(task, methods))
    console.print(about(), style="dim", highlight=False)
    for line in reading(results):
        console.print(f"* {line}", highlight=False)


def reading(results: Results) -> list[str]:
    """Return lines that say which presets lose accuracy and whether the replicas are equal."""
    lines = []
    for task in results.tasks:
        fed_back = [summary for summary in results.of(task) if summary.feedback]
        short = [summary for summary in fed_back if summary.mean_behind > LEEWAY]
        points = f"{100 * LEEWAY:.1f} points"
        if not fed_back:
            continue
        if short:
            named = ", ".join(f"{each.method} ({100 * each.mean_behind:.1f})" for each in short)
            lines.append(
                f"{task}: presets with error feedback that are more than {points} behind: {named}."
            )
        else:
            lines.append(f"{task}: no preset with error feedback is more than {points} behind.")
    return [*lines, replicas(results.runs)]
