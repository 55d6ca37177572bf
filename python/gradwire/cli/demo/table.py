"""The demo's tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.table import Table

from gradwire.cli.demo.reading import reading
from gradwire.cli.demo.results import HALF, PLAIN, Comparison, Results, Run
from gradwire.cli.training.link import format_rate

ONE_TABLE_WIDTH = 106  # columns of a terminal from which on all figures stand in one table


def format_bytes(count: float) -> str:
    """Return a number of bytes with three significant digits and a decimal unit."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= 0.9995 * size:
            return (
                f"{count / size:.3g} {unit}"
                if count < 999.5 * size
                else f"{count / size:.0f} {unit}"
            )
    return f"{count:.0f} B"


def format_seconds(seconds: float | None) -> str:
    """Return seconds with one decimal; a dash for never."""
    return "-" if seconds is None else f"{seconds:.1f}"


def format_times(factor: float | None) -> str:
    """Return a factor with two or three significant digits."""
    if factor is None:
        return "-"
    return (
        f"{factor:.2f}x"
        if factor < 0.995
        else f"{factor:.1f}x"
        if factor < 99.95
        else f"{factor:.0f}x"
    )


@dataclass(frozen=True)
class _Column:
    heading: str
    figure: Callable[[Run], str]


def _speed_columns(comparison: Comparison) -> list[_Column]:
    return [
        _Column("ms a\nstep", lambda run: f"{1e3 * run.step:.1f}"),
        _Column("% of it\ncompute", lambda run: f"{100 * run.compute_share:.0f}"),
        _Column("sent\na step", lambda run: format_bytes(run.sent_per_step)),
        _Column("ratio", lambda run: format_times(run.ratio)),
        _Column("speed,\nnone=1", lambda run: format_times(comparison.speed_up(run, PLAIN))),
        _Column("speed,\nbf16=1", lambda run: format_times(comparison.speed_up(run, HALF))),
    ]


def _learning_columns(comparison: Comparison) -> list[_Column]:
    steps, budget, target = (
        f"{comparison.runs[0].steps} st.",
        comparison.equal_time,
        comparison.equal_loss,
    )
    return [
        _Column(f"loss,\n{steps}", lambda run: f"{run.curve[-1]['loss']:.3f}"),
        _Column(f"loss,\n{budget:.1f} s", lambda run: f"{run.at_time(budget, 'loss'):.3f}"),
        _Column(f"acc. %\n{steps}", lambda run: f"{100 * run.curve[-1]['accuracy']:.1f}"),
        _Column(
            f"acc. %\n{budget:.1f} s", lambda run: f"{100 * run.at_time(budget, 'accuracy'):.1f}"
        ),
        _Column(f"s to\n{target:.3f}", lambda run: format_seconds(run.seconds_to_loss(target))),
    ]


def comparison_tables(comparison: Comparison, width: int) -> list[Table]:
    """Return one task's figures over one link: a table, or two where the terminal is narrow."""
    speed, learning = _speed_columns(comparison), _learning_columns(comparison)
    groups = [[*speed, *learning]] if width >= ONE_TABLE_WIDTH else [speed, learning]
    link = format_rate(comparison.rate) if comparison.rate else "loopback"
    titles = [f"{comparison.title}, {link}", None]
    return [
        _table(comparison.runs, columns, title)
        for columns, title in zip(groups, titles, strict=False)
    ]


def _table(runs: list[Run], columns: list[_Column], title: str | None) -> Table:
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    table.add_column("method", no_wrap=True)
    for column in columns:
        table.add_column(column.heading, justify="right", no_wrap=True)
    for run in runs:
        table.add_row(run.label, *(column.figure(run) for column in columns))
    return table


def print_results(results: Results, console: Console) -> None:
    """Print a table for each task and link, the key to it, and the reading."""
    for comparison in results.comparisons():
        console.print()
        for table in comparison_tables(comparison, console.width):
            console.print(table)
    console.print(_key(results), style="dim", highlight=False)
    console.print()
    for line in reading(results):
        console.print(f"* {line}", highlight=False)


def _key(results: Results) -> str:
    counted = (
        "counted at its interface, packet headers included"
        if results.link["shaped"]
        else "payload only"
    )
    return (
        "ms a step: median. compute: a step without any exchange; the rest is coding, sending and "
        f"waiting. sent: bytes that leave a rank, {counted}. ratio: bytes of plain float32 over "
        "those of the method, payload only. loss and acc.(uracy): on held-out data, after equal "
        "steps (st.) and after equal time, which is when the fastest method is done; evaluation is "
        "not in the clock. s to: seconds of training to the lowest loss that every method reached."
    )
