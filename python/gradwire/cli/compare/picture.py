"""The picture of a comparison: accuracy against bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot as plt

from gradwire.cli.compare.results import BASELINES, LEEWAY, Comparison

__all__ = ["draw"]

# Okabe and Ito's palette, which stays apart for colour-blind readers; markers say the same again.
_BASELINE: dict[str, Any] = {"color": "#000000", "marker": "o"}
_FEEDBACK: dict[str, Any] = {"color": "#0072B2", "marker": "^"}
_NONE: dict[str, Any] = {"color": "#D55E00", "marker": "s"}


def draw(comparison: Comparison, path: Path) -> None:
    """Save the picture as an SVG: a panel for each task, a point for each method."""
    tasks = list(comparison.tasks)
    # Text stays text, and nothing depends on the time: the file changes only when figures do.
    with plt.rc_context({"svg.fonttype": "none", "svg.hashsalt": "gradwire"}):
        figure, panels = plt.subplots(
            1, len(tasks), figsize=(7.2 * len(tasks), 5.6), squeeze=False, layout="constrained"
        )
        for panel, task in zip(panels[0], tasks, strict=True):
            _panel(panel, comparison, task)
        handles, labels = panels[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=3, frameon=False)
        figure.savefig(path, metadata={"Date": None})
        plt.close(figure)


def _panel(axes: Any, comparison: Comparison, task: str) -> None:
    entries = comparison.of(task)
    kinds = {
        "not a preset": ([e for e in entries if e.method in BASELINES], _BASELINE),
        "with error feedback": ([e for e in entries if e.feedback], _FEEDBACK),
        "without": (
            [e for e in entries if not e.feedback and e.method not in BASELINES],
            _NONE,
        ),
    }
    for label, (own, look) in kinds.items():
        points = ([e.bytes_per_step for e in own], [100 * e.accuracy for e in own])
        axes.plot(*points, linestyle="", label=label, markersize=6, **look)
    for place, entry in enumerate(entries):
        # Neighbours on the axis of bytes have their names at four heights in turn.
        axes.annotate(
            entry.label,
            (entry.bytes_per_step, 100 * entry.accuracy),
            xytext=(0, (7, -15, 17, -25)[place % 4]),
            textcoords="offset points",
            ha="center",
            fontsize=8,
        )
    dense = 100 * comparison.dense(task).accuracy
    axes.axhspan(dense - 100 * LEEWAY, dense, color="0.93", zorder=0)
    axes.set_xscale("log")
    axes.set_title(task, fontweight="bold")
    axes.set_xlabel("bytes that a rank sends each step")
    axes.set_ylabel("held-out accuracy (%)")
    axes.grid(visible=True, color="0.9", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
