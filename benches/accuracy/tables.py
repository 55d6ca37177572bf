"""Tables and verdicts as lines of Markdown."""

import math
from collections.abc import Sequence

from .methods import METHODS
from .plan import MEASURES
from .summary import Result, Summary, Verdict


def best(summary: Summary) -> list[str]:
    """Return the table of one section: every method at its best learning rate."""
    behind = {id(each.result): each for each in summary.verdicts()}
    measure = MEASURES[summary.section.measure]
    beside = ("early, %", "at the end, %") if measure.whole else ("loss",)
    lines = head(
        "method",
        "ranks",
        "learning rate",
        "kB per step",
        "compression",
        *beside,
        measure.heading,
        "points behind",
    )
    for each in summary.best:
        dense = summary.dense(each.ranks)
        found = behind.get(id(each))
        # A ring all-reduce, for the same number of ranks.
        plain = dense.bytes_per_step * _ring(each.ranks) / _ring(dense.ranks)
        lines.append(
            row(
                each.method,
                str(each.ranks),
                rate(each.learning_rate),
                f"{each.bytes_per_step / 1e3:.1f}",
                f"{plain / each.bytes_per_step:.0f}",
                *(
                    (f"{each.early:.1f}", f"{each.last:.1f}")
                    if measure.whole
                    else (f"{each.loss:.4f}",)
                ),
                _with_error(each.mean, each.error),
                "" if found is None else _with_error(found.behind, found.error, "+"),
            )
        )
    return lines


def overview(summaries: Sequence[Summary]) -> list[str]:
    """Return one table of all tasks that are trained with AdamW, with two ranks."""
    shown = [each for each in summaries if "dense AdamW" in each.section.baselines]
    results = [{each.method: each for each in summary.best if each.ranks == 2} for summary in shown]
    lines = head(
        "2 ranks; kB per step in parentheses",
        *(
            f"{each.section.title.partition(',')[0]}, {MEASURES[each.section.measure].heading}"
            for each in shown
        ),
    )
    for method in METHODS:
        if any(method in each for each in results):
            cells = [_with_bytes(each.get(method)) for each in results]
            lines.append(row(f"**{method}**" if method == "adam(0.01)" else method, *cells))
    return lines


def _with_bytes(result: Result | None) -> str:
    if result is None:
        return ""
    return f"{_with_error(result.mean, result.error)} ({result.bytes_per_step / 1e3:.1f})"


def rates(summary: Summary) -> list[str]:
    """Return the table of all learning rates that were tried."""
    tried = sorted({each.learning_rate for each in summary.every})
    lines = head("method", "ranks", *(rate(each) for each in tried))
    series: dict[tuple[str, int], dict[float, Result]] = {}
    for each in summary.every:
        series.setdefault((each.method, each.ranks), {})[each.learning_rate] = each
    marked = {(each.method, each.ranks, each.learning_rate) for each in summary.best}
    for (method, ranks), found in series.items():
        cells = []
        for one in tried:
            cell = _mean(found[one]) if one in found else ""
            cells.append(f"**{cell}**" if (method, ranks, one) in marked else cell)
        lines.append(row(method, str(ranks), *cells))
    return lines


def verdicts(summary: Summary) -> list[str]:
    """Return a line for every method with an aim."""
    return [
        f"* {_line(each, summary.dense(each.result.ranks))}"
        for each in summary.verdicts()
        if each.allowed is not None
    ]


def _line(found: Verdict, dense: Result) -> str:
    """Return one verdict as a sentence."""
    error = "" if math.isnan(found.error) else f" ± {found.error:.2f}"
    points = f"{abs(found.behind):.2f}{error} points"
    if found.as_accurate:
        side = "below" if found.behind >= 0 else "above"
        how = f"as accurate as {dense.method}, {points} {side}"
    else:
        how = f"{points} {'behind' if found.behind >= 0 else 'ahead of'} {dense.method}"
    assert found.allowed is not None
    if found.passed:
        end = f"holds (at most {found.allowed:.2f} behind)"
    else:
        end = (
            f"**fails by {found.behind - found.allowed:.2f}** (at most {found.allowed:.2f} behind)"
        )
    result = found.result
    return f"`{result.method}`, {result.ranks} ranks: {how}: {end}."


def rate(value: float) -> str:
    """Return a learning rate for reading."""
    return f"{value:.4g}"


def _ring(ranks: int) -> float:
    return 2 * (ranks - 1) / ranks


def _mean(result: Result) -> str:
    return "diverged" if math.isnan(result.mean) else f"{result.mean:.2f}"


def _with_error(value: float, error: float, sign: str = "") -> str:
    if math.isnan(value):
        return "diverged"
    shown = f"{round(value, 2) + 0.0:{sign}.2f}"  # never -0.00
    return shown if math.isnan(error) else f"{shown} ± {error:.2f}"


def head(*headings: str) -> list[str]:
    """Return the head of a table: a column of text, then of figures."""
    return [row(*headings), row("---", *["---:"] * (len(headings) - 1))]


def row(*cells: str) -> str:
    """Return a row of a table."""
    return f"| {' | '.join(cells)} |"


def joined(parts: Sequence[list[str]]) -> list[str]:
    """Return paragraphs with empty lines between them."""
    lines: list[str] = []
    for part in parts:
        lines += [*part, ""]
    return lines[:-1]
