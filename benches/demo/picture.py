"""Plot the demo's results: held-out loss over training time."""

from pathlib import Path
from typing import Any

from benches.demo.results import HALF, PLAIN, Comparison
from benches.harness.theme import INK, bare, panels

# Okabe and Ito's palette, distinguishable for colour-blind readers; line styles and markers carry
# the same information.
_STYLES: dict[str, dict[str, Any]] = {
    PLAIN: {"color": INK, "linestyle": "-", "marker": "o"},
    HALF: {"color": "#E69F00", "linestyle": "--", "marker": "s"},
}
_OTHERS: list[dict[str, Any]] = [
    {"color": "#0072B2", "linestyle": "-", "marker": "^"},
    {"color": "#D55E00", "linestyle": "-.", "marker": "D"},
    {"color": "#009E73", "linestyle": ":", "marker": "v"},
    {"color": "#CC79A7", "linestyle": "--", "marker": "P"},
    {"color": "#56B4E9", "linestyle": "-", "marker": "X"},
]


def styles(methods: list[str]) -> dict[str, dict[str, Any]]:
    others = [method for method in methods if method not in _STYLES]
    return _STYLES | {method: _OTHERS[i % len(_OTHERS)] for i, method in enumerate(others)}


def draw(comparisons: list[Comparison], ratio: float, path: Path) -> None:
    """Save held-out loss over seconds of training: a row per task, a column per link."""
    rows = len({each.runs[0].task for each in comparisons})
    columns = len(comparisons) // rows
    look = styles([run.method for run in comparisons[0].runs])
    size = max(4.4 * columns, 6.0), 3.2 * rows + 0.4
    with panels(path, rows, columns, size, dpi=130, sharey="row") as (figure, axes):
        for each, comparison in zip(axes.flat, comparisons, strict=True):
            each.set_title(comparison.where)
            for run in comparison.runs:
                curve = [(point["seconds"], point["loss"]) for point in run.curve]
                how = {"linewidth": 1.8, "markersize": 4, **look[run.method]}
                label = run.label if run.method in _STYLES else f"{run.label}, ratio {ratio:g}"
                each.plot(*zip(*curve, strict=True), label=label, **how)
            each.set_xlabel("training time (s)")
            each.set_xlim(left=0)
            bare(each)
        for first in axes[:, 0]:
            first.set_ylabel("held-out loss (nats)")
        handles, labels = axes[0][0].get_legend_handles_labels()
        where: dict[str, Any] = {"loc": "outside upper center", "ncols": int(size[0] // 2.8)}
        figure.legend(handles, labels, frameon=False, **where)
