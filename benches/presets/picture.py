"""Plot a comparison: accuracy against bytes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.transforms import Bbox

from benches.presets.results import BASELINES, LEEWAY, Results, Summary
from gradwire.cli.theme import BAND, STYLE, save

__all__ = ["draw"]

# Okabe and Ito's palette: distinguishable for colour-blind readers, on light and dark backgrounds.
# Markers carry the same information.
_BASELINE: dict[str, Any] = {"color": "#808080", "marker": "o"}
_FEEDBACK: dict[str, Any] = {"color": "#0080c4", "marker": "^"}
_NONE: dict[str, Any] = {"color": "#D55E00", "marker": "s"}


def draw(results: Results, path: Path) -> None:
    """Save the figure: a panel per task, a point per method.

    An SVG follows the reader's light or dark theme.
    """
    tasks = list(results.tasks)
    with plt.rc_context(STYLE):
        figure, panels = plt.subplots(
            len(tasks), 1, figsize=(9.0, 5.2 * len(tasks)), squeeze=False, layout="constrained"
        )
        column = [row[0] for row in panels]
        for panel, task in zip(column, tasks, strict=True):
            _panel(panel, results, task)
        handles, labels = column[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=3, frameon=False)
        figure.draw_without_rendering()  # settles the layout
        for panel, task in zip(column, tasks, strict=True):
            _name_points(panel, results.of(task))
        save(figure, path)
        plt.close(figure)


def _panel(axes: Any, results: Results, task: str) -> None:
    methods = results.of(task)
    kinds = {
        "not a preset": ([each for each in methods if each.method in BASELINES], _BASELINE),
        "with error feedback": ([each for each in methods if each.feedback], _FEEDBACK),
        "without": (
            [each for each in methods if not each.feedback and each.method not in BASELINES],
            _NONE,
        ),
    }
    for label, (own, look) in kinds.items():
        points = ([each.bytes_per_step for each in own], [100 * each.accuracy for each in own])
        axes.plot(*points, linestyle="", label=label, markersize=6, **look)
        for each in own:
            if len(each.behind) > 1:
                _range(axes, each, 100 * results.dense(task).accuracy, look["color"])
    dense = 100 * results.dense(task).accuracy
    axes.axhspan(dense - 100 * LEEWAY, dense, color=BAND, zorder=0)
    axes.set_xscale("log")
    axes.margins(x=0.08, y=0.15)
    axes.set_title(task, fontweight="bold")
    axes.set_xlabel("bytes that a rank sends per step")
    axes.set_ylabel("held-out accuracy (%)")
    axes.grid(visible=True, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _range(axes: Any, summary: Summary, dense: float, color: str) -> None:
    ends = [dense - 100 * bound(summary.behind) for bound in (max, min)]
    axes.plot([summary.bytes_per_step] * 2, ends, color=color, linewidth=1, alpha=0.6)


# Possible places of a name relative to its point, nearest first: degrees, and distances in points.
_ANGLES = (90, 270, 0, 180, 45, 135, 315, 225)
_DISTANCES = (8, 16, 26, 38, 52, 70)


def _name_points(axes: Any, methods: Sequence[Summary]) -> None:
    """Write each method's name next to its point, in free space."""
    points = [
        axes.transData.transform((each.bytes_per_step, 100 * each.accuracy)) for each in methods
    ]
    reach = 5 * axes.figure.dpi / 72
    taken = [Bbox.from_extents(x - reach, y - reach, x + reach, y + reach) for x, y in points]
    for each in methods:
        taken.append(_place(axes, each, taken))


def _place(axes: Any, summary: Summary, taken: Sequence[Bbox]) -> Bbox:
    renderer = axes.figure.canvas.get_renderer()
    name = _name(axes, summary)
    best: tuple[float, Bbox, dict[str, Any]] | None = None
    for distance in _DISTANCES:
        for angle in _ANGLES:
            where = _offset(angle, distance)
            name.set(**where)
            box = name.get_window_extent(renderer)
            overlap = sum(_shared(box, other) for other in taken) + _outside(box, axes.bbox)
            if best is None or overlap < best[0]:
                best = (overlap, box, where | {"far": distance > _DISTANCES[0] or angle % 90})
            if not overlap:
                break
        if best is not None and not best[0]:
            break
    assert best is not None
    _, box, where = best
    # A line connects a name to its point unless they are adjacent.
    if where.pop("far"):
        name.remove()
        line = {"color": "#808080", "linewidth": 0.6, "shrinkA": 1, "shrinkB": 3}
        name = _name(axes, summary, arrowprops={"arrowstyle": "-", **line})
    name.set(**where)
    return box


def _name(axes: Any, summary: Summary, **options: Any) -> Any:
    return axes.annotate(
        summary.label,
        (summary.bytes_per_step, 100 * summary.accuracy),
        xytext=(0, 0),
        textcoords="offset points",
        va="center",
        fontsize=9,
        **options,
    )


def _offset(angle: int, distance: int) -> dict[str, Any]:
    across = {0: 1, 45: 1, 90: 0, 135: -1, 180: -1, 225: -1, 270: 0, 315: 1}[angle]
    up = {0: 0, 45: 1, 90: 1, 135: 1, 180: 0, 225: -1, 270: -1, 315: -1}[angle]
    align = {1: "left", 0: "center", -1: "right"}[across]
    return {"position": (across * distance, up * (distance + 2)), "ha": align}


def _shared(one: Bbox, other: Bbox) -> float:
    both = Bbox.intersection(one.padded(1), other)
    return 0.0 if both is None else float(both.width * both.height)


def _outside(box: Bbox, frame: Bbox) -> float:
    both = Bbox.intersection(box, frame)
    inside = 0.0 if both is None else both.width * both.height
    return float(box.width * box.height - inside)
