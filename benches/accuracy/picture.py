"""Draw accuracy against bytes: a panel for each section, a point for each method."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot as plt

from gradwire.cli.theme import BAND, STYLE, save

from .plan import MEASURES
from .summary import POINTS, Summary

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
    "adam(0.01), warm-up": ("#0080c4", "p"),
    "adam(0.002), warm-up": ("#56B4E9", "D"),
    "adam_onebit()": ("#009E73", "X"),
}


def draw(summaries: Sequence[Summary], path: Path) -> None:
    """Save the figure. Hollow points are runs with eight ranks."""
    rows = -(-len(summaries) // 2)
    with plt.rc_context(STYLE):
        figure, panels = plt.subplots(
            rows, 2, figsize=(9.0, 4.0 * rows + 0.6), squeeze=False, layout="constrained"
        )
        named: dict[str, Any] = {}
        for at, panel in enumerate(panels.flat):
            if at < len(summaries):
                _panel(panel, summaries[at])
            else:
                panel.set_axis_off()
            handles, labels = panel.get_legend_handles_labels()
            named = dict(zip(labels, handles, strict=True)) | named
        ordered = [label for method in LOOKS for label in named if label.split(", 8")[0] == method]
        where = {"loc": "outside upper center", "ncols": 4}
        figure.legend([named[label] for label in ordered], ordered, frameon=False, **where)
        save(figure, path)
        plt.close(figure)


def _panel(axes: Any, summary: Summary) -> None:
    dense = summary.dense(2)["mean"]
    axes.axhspan(dense - POINTS, dense, color=BAND, zorder=0)
    for _, each in summary.best.iterrows():
        color, marker = LOOKS[each["method"]]
        many = each["ranks"] != 2
        axes.errorbar(
            [each["nbytes"]],
            [each["mean"]],
            yerr=None if math.isnan(each["error"]) else [each["error"]],
            color=color,
            marker=marker,
            markerfacecolor="none" if many else color,
            markersize=7,
            linestyle="",
            elinewidth=1,
            capsize=2,
            label=f"{each['method']}, {each['ranks']} ranks" if many else each["method"],
        )
    axes.set_xscale("log")
    axes.margins(x=0.12, y=0.15)
    axes.set_title(summary.section.title, fontweight="bold", fontsize=11)
    axes.set_xlabel("bytes that a rank sends per step")
    axes.set_ylabel(MEASURES[summary.section.measure].axis)
    axes.grid(visible=True, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
