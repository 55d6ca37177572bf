"""Plot the demo's results: held-out loss and bytes sent, both over training time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from benches.demo.results import HALVES, PLAIN, Comparison, Results
from gradwire.cli.plan.quantities import format_rate, size
from gradwire.cli.theme import save

# Okabe and Ito's palette, distinguishable for colour-blind readers; line styles and markers carry
# the same information.
_STYLES: dict[str, dict[str, Any]] = {
    PLAIN: {"color": "#000000", "linestyle": "-", "marker": "o"},
    **{half: {"color": "#E69F00", "linestyle": "--", "marker": "s"} for half in HALVES},
}
_OTHERS: list[dict[str, Any]] = [
    {"color": "#0072B2", "linestyle": "-", "marker": "^"},
    {"color": "#D55E00", "linestyle": "-.", "marker": "D"},
    {"color": "#009E73", "linestyle": ":", "marker": "v"},
    {"color": "#CC79A7", "linestyle": "--", "marker": "P"},
    {"color": "#56B4E9", "linestyle": "-", "marker": "X"},
]


def styles(methods: list[str]) -> dict[str, dict[str, Any]]:
    """Return each method's line style; those of the baselines are fixed."""
    others = [method for method in methods if method not in _STYLES]
    return _STYLES | {method: _OTHERS[i % len(_OTHERS)] for i, method in enumerate(others)}


def draw(results: Results, path: Path) -> None:
    """Save the figure as a PNG: a column per task and link, loss above, bytes below."""
    comparisons = results.comparisons()
    look = styles(list(dict.fromkeys(run.method for run in results.runs)))
    columns = len(comparisons)
    figure, axes = plt.subplots(
        2,
        columns,
        figsize=(4.3 * columns + 0.6, 7.2),
        squeeze=False,
        sharex="col",
        layout="constrained",
    )
    for column, comparison in enumerate(comparisons):
        _loss_panel(axes[0][column], comparison, look, results.settings["ratio"])
        _bytes_panel(axes[1][column], comparison, look)
    axes[0][0].set_ylabel("held-out loss (nats, log scale)")
    axes[1][0].set_ylabel("bytes sent by a rank")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside upper center", ncols=len(labels), frameon=False, fontsize=11
    )
    save(figure, path, dpi=130)
    plt.close(figure)


def _loss_panel(
    axes: Any, comparison: Comparison, look: dict[str, dict[str, Any]], ratio: float
) -> None:
    link = format_rate(comparison.rate) if comparison.rate else "loopback"
    axes.set_title(f"{comparison.task}, {link}", fontsize=12, fontweight="bold")
    for run in comparison.runs:
        seconds, loss = ([point[what] for point in run.curve] for what in ("seconds", "loss"))
        label = run.label if run.method in _STYLES else f"{run.label}, ratio {ratio:g}"
        axes.plot(seconds, loss, label=label, linewidth=1.8, markersize=4.5, **look[run.method])
    axes.axvline(comparison.equal_time, color="0.55", linewidth=1, linestyle=(0, (2, 2)), zorder=0)
    axes.text(
        *(comparison.equal_time, 1.0),
        f" {comparison.fastest.label} finishes",
        transform=axes.get_xaxis_transform(),
        va="top",
        fontsize=8.5,
        color="0.35",
    )
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda loss, _: f"{loss:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    _tidy(axes)


def _bytes_panel(axes: Any, comparison: Comparison, look: dict[str, dict[str, Any]]) -> None:
    for run in comparison.runs:
        points = [point for point in run.curve if point["step"] > 0]
        seconds, sent = (
            [point["seconds"] for point in points],
            [run.sent_per_step * point["step"] for point in points],
        )
        axes.plot(seconds, sent, linewidth=1.8, markersize=4.5, **look[run.method])
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda count, _: size(count)))
    axes.set_xlabel("training time (s)")
    _tidy(axes)


def _tidy(axes: Any) -> None:
    axes.set_xlim(left=0)
    axes.grid(visible=True, color="0.9", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
