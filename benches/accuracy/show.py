"""Show a recorded run of ``make accuracy`` again, or write it into the documentation.

python -m benches.accuracy.show benches/results/FILE.json
    [--into docs/accuracy.md] [--readme README.md]

Only rows whose runs are all there are written into the documentation.
"""

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benches.harness import pages, results
from benches.harness.pages import with_error
from benches.harness.theme import BAND, bare, panels

from . import store
from .methods import METHODS
from .plan import MEASURES
from .store import Document
from .summary import ALLOWED, POINTS, Result, Series, Summary, allowed, summarize

BEST, RATES, README = "accuracy", "all learning rates", "accuracy"
FIGURE = "accuracy.svg"


def label(method: str) -> str:
    return method.replace("dense ", "uncompressed ")


def best(summaries: Sequence[Summary]) -> str:
    """Return the tables at the best learning rates, each with its verdicts."""
    parts = []
    for each in summaries:
        seeds = f"mean of {each.seeds} seeds ± standard error" if each.seeds > 1 else "one seed"
        caption = f"**{each.section.title}**, {each.section.size} parameters, {each.steps:,} steps"
        caption += f", {seeds}"
        caption += f"; {len(each.missing)} rows unfinished" * bool(each.missing)
        lines = [f"* {line}" for row in each.best if (line := verdict(each, row))]
        parts += [caption, _best(each), *(["\n".join(lines)] if lines else [])]
    return "\n\n".join(parts)


def _best(summary: Summary) -> str:
    heading, _ = MEASURES[summary.section.measure]
    headings = ("method", "ranks", "learning rate", "kB per step", "compression", "loss",
                heading, "points behind")  # fmt: skip
    rows = []
    for row in summary.best:
        dense = summary.dense(row.ranks)
        # A ring all-reduce, for the same number of ranks.
        plain = dense.nbytes * _ring(row.ranks) / _ring(dense.ranks)
        behind = "" if summary.is_dense(row) else with_error(*summary.behind(row), "+")
        rows.append(
            [
                label(row.method),
                row.ranks,
                _rate(row.rate),
                f"{row.nbytes / 1e3:.1f}",
                f"{plain / row.nbytes:.0f}",
                f"{row.loss:.4f}",
                with_error(row.mean, row.error),
                behind,
            ]
        )
    return pages.table(headings, rows)


def verdict(summary: Summary, row: Result) -> str:
    """Return in a sentence how a method compares; nothing for one without a target."""
    behind, error = summary.behind(row)
    limit = allowed(row.method, error)
    if limit is None:
        return ""
    best = summary.dense(row.ranks)
    dense, higher = label(best.method), row.loss / best.loss - 1
    points = f"{abs(behind):.2f}{'' if math.isnan(error) else f' ± {error:.2f}'} points"
    if abs(behind) <= 2 * error:
        side = "below" if behind >= 0 else "above"
        how = f"{points} {side} {dense}, within two standard errors"
    else:
        how = f"{points} {'behind' if behind >= 0 else 'ahead of'} {dense}"
    end = "target met" if behind <= limit else f"**target missed by {behind - limit:.2f}**"
    if behind > limit and higher <= ALLOWED[row.method][2]:
        end = f"target met (the loss is {100 * higher:.1f} % higher)"
    return f"`{row.method}`, {row.ranks} ranks: {how}: {end} (at most {limit:.2f} behind)."


def rates(summaries: Sequence[Summary]) -> str:
    """Return the tables of all learning rates that were tried, the best of each method in bold."""
    parts = []
    for each in summaries:
        rows: dict[Series, dict[float, str]] = {}
        for result in each.every:
            if result.series not in each.missing:
                cell = "diverged" if math.isnan(result.mean) else f"{result.mean:.2f}"
                marked = f"**{cell}**" if result in each.best else cell
                rows.setdefault(result.series, {})[result.rate] = marked
        tried = sorted({rate for row in rows.values() for rate in row})
        cells = [[label(m), n, *(row.get(x, "") for x in tried)] for (m, n), row in rows.items()]
        title = f"**{each.section.title}**, {MEASURES[each.section.measure][0]}"
        parts += [title, pages.table(["method", "ranks", *map(_rate, tried)], cells)]
    return "\n\n".join(parts)


def overview(summaries: Sequence[Summary]) -> str:
    """Return one table of all tasks that are trained with AdamW, with two ranks."""
    shown = [each for each in summaries if "dense AdamW" in each.section.baselines]
    found = [{row.method: row for row in each.best if row.ranks == 2} for each in shown]
    titles = [
        f"{each.section.title.partition(',')[0]}, {MEASURES[each.section.measure][0]}"
        for each in shown
    ]
    rows = []
    for method in METHODS:
        if any(method in each for each in found):
            cells = [_with_bytes(each.get(method)) for each in found]
            rows.append([f"**{method}**" if method == "adam(0.01)" else label(method), *cells])
    return pages.table(["2 ranks; kB per step in parentheses", *titles], rows)


def _with_bytes(row: Result | None) -> str:
    if row is None:
        return ""
    return f"{with_error(row.mean, row.error)} ({row.nbytes / 1e3:.1f})"


def _rate(value: float) -> str:
    return f"{value:.4g}"


def _ring(ranks: int) -> float:
    return 2 * (ranks - 1) / ranks


# Okabe and Ito's palette, as in the other figures; markers carry the same information.
LOOKS: dict[str, tuple[str, str]] = {
    "dense AdamW": ("#808080", "o"),
    "dense AdamW, β1 0.95": ("#808080", "<"),
    "dense AdamW, β2 0.95": ("#808080", ">"),
    "dense SGD": ("#808080", "s"),
    "topk(0.01), AdamW": ("#D55E00", "v"),
    "topk(0.01), SGD": ("#D55E00", "^"),
    "topk(0.01), SGD without momentum": ("#0080c4", "^"),
    "dgc(0.01)": ("#CC79A7", "P"),
    "adam(0.01)": ("#0080c4", "D"),
    "adam(0.01), all-gather": ("#0080c4", "p"),
    "adam(0.002)": ("#56B4E9", "D"),
    "adam_onebit()": ("#009E73", "X"),
    "dense Muon": ("#808080", "h"),
    "muon(0.2)": ("#0080c4", "h"),
    "muon(0.1)": ("#56B4E9", "h"),
}


def draw(summaries: Sequence[Summary], path: Path) -> None:
    """Save the figure. Hollow points are runs with eight ranks."""
    rows = -(-len(summaries) // 2)
    with panels(path, rows, 2, (9.0, 4.0 * rows + 0.6)) as (figure, found):
        named: dict[str, Any] = {}
        for at, panel in enumerate(found.flat):
            if at < len(summaries):
                _panel(panel, summaries[at])
            else:
                panel.set_axis_off()
            handles, labels = panel.get_legend_handles_labels()
            named = dict(zip(labels, handles, strict=True)) | named
        ordered = [each for name in LOOKS for each in named if each.split(", 8")[0] == label(name)]
        where: dict[str, Any] = {"loc": "outside upper center", "ncols": 3}
        figure.legend([named[each] for each in ordered], ordered, frameon=False, **where)


def _panel(axes: Any, summary: Summary) -> None:
    dense = summary.dense(2).mean
    axes.axhspan(dense - POINTS, dense, color=BAND, zorder=0)
    for each in summary.best:
        color, marker = LOOKS[each.method]
        many = each.ranks != 2
        axes.errorbar(
            [each.nbytes],
            [each.mean],
            yerr=None if math.isnan(each.error) else [each.error],
            color=color,
            marker=marker,
            markerfacecolor="none" if many else color,
            markersize=7,
            linestyle="",
            elinewidth=1,
            capsize=2,
            label=label(each.method) + f", {each.ranks} ranks" * bool(many),
        )
    axes.set_xscale("log")
    axes.margins(x=0.12, y=0.15)
    axes.set_title(summary.section.title, fontweight="bold", fontsize=11)
    axes.set_xlabel("bytes that a rank sends per step")
    axes.set_ylabel(MEASURES[summary.section.measure][1])
    bare(axes)


def source(found: Document, path: str) -> str:
    processors = " and ".join(dict.fromkeys(each["processor"] for each in found["runs"]))
    hours = sum(each["seconds"] for each in found["runs"]) / 3600
    return (
        f"From `make accuracy` ({len(found['runs'])} runs, {hours:.1f} core-hours on {processors}; "
        f"{results.listed(found['versions'])}; {found['date'][:10]}; [all runs]({path}))."
    )


def published(path: Path) -> tuple[Document, list[Summary]]:
    """Return a file, and the sections in which something that compresses is finished."""
    plan, found = store.read(path)
    every = summarize(plan, store.of_plan(plan, found["runs"]))
    return found, [each for each in every if not all(map(each.is_dense, each.best))]


def readme(summaries: Sequence[Summary]) -> str:
    seeds = max(each.seeds for each in summaries)
    return (
        f"{overview(summaries)}\n\nFrom `make accuracy`: means of {seeds} seeds ± standard error, "
        "codecs for AdamW at the learning rate of uncompressed training; "
        "[all figures](docs/accuracy.md)."
    )


def page(found: Document, summaries: Sequence[Summary], path: str) -> dict[str, str]:
    picture = f"![Accuracy against bytes]({FIGURE})"
    return {
        BEST: f"{best(summaries)}\n\n{picture}\n\n{source(found, path)}",
        RATES: rates(summaries),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="benches.accuracy.show", description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--into", type=Path, help="rewrite the tables and the figure of this page")
    parser.add_argument("--readme", type=Path, help="rewrite the table in this README")
    chosen = parser.parse_args()
    found, summaries = published(chosen.file)
    if chosen.readme is not None:
        pages.replace(chosen.readme, README, readme(summaries))
    if chosen.into is None:
        print(f"{best(summaries)}\n\n{rates(summaries)}")
        return
    for name, block in page(found, summaries, f"../{results.relative(chosen.file)}").items():
        pages.replace(chosen.into, name, block)
    draw(summaries, chosen.into.with_name(FIGURE))


if __name__ == "__main__":
    main()
