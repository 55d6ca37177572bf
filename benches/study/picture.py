"""Draw the map of winners: a panel for each model, a cell for each link and number of ranks."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.patches import Patch, Rectangle

from gradwire.cli.theme import STYLE, save

from . import methods, tables
from .aims import link_name
from .plan import SECTIONS, Cell
from .reading import Outcome, Verdict

NOISE: dict[str, Any] = {
    "facecolor": "#f6f6f6", "edgecolor": "#bbbbbb", "hatch": "////", "linewidth": 0.0,
}  # fmt: skip
INK = "#000000"  # on colours that are light in either theme

# Tints of Okabe and Ito's palette; the name stands in every cell as well.
COLORS = {
    methods.FP32: "#c9c9c9",
    methods.BF16: "#e0dccb",
    methods.TORCH_POWER: "#f3b58a",
    methods.OUR_POWER: "#f0d48a",
    "adam(0.01)": "#8cc3ea",
    "adam(0.002), warm-up": "#b5dcf4",
    "adam_onebit()": "#8fd4bd",
    "topk(0.01)": "#d7b3d3",
    methods.AUTO: "#b8d99a",
}


def draw(found: tables.Outcomes, path: Path, note: str = "") -> None:
    """Save the map; an SVG follows the reader's theme."""
    named = tables.sections(found)
    ranks = {name: sorted({cell.ranks for cell in found if cell.section == name}) for name in named}
    heights = [len(ranks[name]) + 0.9 for name in named]
    with plt.rc_context(STYLE):
        figure, panels = plt.subplots(
            len(named),
            1,
            figsize=(9.0, 0.46 * sum(heights) + 0.7),
            squeeze=False,
            height_ratios=heights,
            layout="constrained",
        )
        for panel, name in zip((each for (each,) in panels), named, strict=True):
            _panel(panel, found, name, ranks[name])
        winners = {None if each.winner is None else each.winner.method for each in found.values()}
        handles = [Patch(color=COLORS[name], label=name) for name in COLORS if name in winners]
        if None in winners:
            handles.append(Patch(label=Verdict.NOISE.value, **NOISE))
        figure.legend(
            handles=handles,
            loc="outside upper center",
            ncols=4,
            frameon=False,
            title=note or None,
        )
        save(figure, path)
        plt.close(figure)


def _panel(axes: Any, found: tables.Outcomes, section: str, ranks: Sequence[int]) -> None:
    links = tables.links(found, section)
    for column, link in enumerate(links):
        for line, count in enumerate(ranks):
            outcome = found.get(Cell(section, count, link))
            if outcome is not None:
                _cell(axes, column, line, outcome)
    axes.set_xlim(0, len(links))
    axes.set_ylim(0, len(ranks))
    axes.set_xticks([at + 0.5 for at in range(len(links))], [link_name(each) for each in links])
    axes.set_yticks([at + 0.5 for at in range(len(ranks))], [f"{each} ranks" for each in ranks])
    axes.tick_params(length=0, labelsize=8)
    axes.set_title(SECTIONS[section].title, fontweight="bold", fontsize=10, loc="left")
    axes.spines[:].set_visible(False)


def _cell(axes: Any, column: int, line: int, outcome: Outcome) -> None:
    winner, best = outcome.winner, outcome.compressed
    filled = NOISE if winner is None else {"color": COLORS[winner.method]}
    axes.add_patch(Rectangle((column + 0.01, line + 0.03), 0.98, 0.94, **filled))
    name, gain = tables.short(best.method), tables.factor(outcome.gain(best))
    gain += tables.mark(outcome, best)
    if winner is best:
        text = f"{name}\n{gain}"
    else:
        text = f"{Verdict.NOISE.value if winner is None else winner.method}\n({name} {gain})"
    axes.text(
        column + 0.5, line + 0.5, text, ha="center", va="center", fontsize=7, color=INK,
        linespacing=1.05,
    )  # fmt: skip
