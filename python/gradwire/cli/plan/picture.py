"""Draw a plan: step time over the number of ranks."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot as plt

from gradwire.cli.plan.quantities import format_rate
from gradwire.cli.plan.work import Plan
from gradwire.cli.theme import STYLE, save

__all__ = ["draw"]

# Okabe and Ito's palette; markers carry the same information.
_COLOURS = ("#808080", "#b0a000", "#0080c4", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
_MARKERS = "osv^DPX*"


def draw(plan: Plan, path: Path) -> None:
    """Save the figure. An SVG follows the reader's light or dark theme.

    Raises
    ------
    OSError, ValueError
        The file cannot be written, or its ending is of no format.
    """
    asked = plan.asked
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(9.0, 5.2), layout="constrained")
        for at, row in enumerate(plan.rows):
            axes.plot(
                asked.ranks,
                [each.step for each in row.predictions],
                label=row.method.name,
                color=_COLOURS[at % len(_COLOURS)],
                marker=_MARKERS[at % len(_MARKERS)],
                markersize=5,
            )
        axes.axhline(asked.workload.compute, color="#808080", linewidth=1, linestyle=":")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(asked.ranks, [f"{each:,}" for each in asked.ranks], rotation=45)
        axes.set_xticks([], minor=True)
        axes.set_xlabel("ranks")
        axes.set_ylabel("seconds per step")
        axes.set_title(
            f"{asked.workload.numel:,} parameters, {format_rate(asked.link.bandwidth)}; dotted: "
            "no exchange"
        )
        axes.grid(visible=True, linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, ncols=2)
        save(figure, path)
        plt.close(figure)
