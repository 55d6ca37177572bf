"""The look of figures in the documentation: an SVG follows the reader's light or dark theme."""

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib import pyplot as plt

from gradwire import _files

# Colours that depend on the reader's theme: light, and their dark counterparts.
INK, GROUND, GRID, BAND = "#1f2328", "#ffffff", "#e4e7ea", "#eef1f4"
DARK = {INK: "#e2e6ea", GROUND: "#131416", GRID: "#34383d", BAND: "#22262b"}

STYLE: dict[Any, Any] = {
    # Text stays text, and nothing depends on the time: the file changes only if the figures do.
    "svg.fonttype": "none",
    "svg.hashsalt": "gradwire",
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.facecolor": GROUND,
    "figure.facecolor": GROUND,
    "savefig.facecolor": GROUND,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": GRID,
}


@contextmanager
def panels(
    path: Path,
    rows: int,
    columns: int,
    size: tuple[float, float],
    *,
    dpi: int = 100,
    **options: Any,
) -> Iterator[tuple[Any, Any]]:
    """Yield a figure of this size in inches and its panels; then write it, or nothing at all."""
    matplotlib.use("Agg")
    with plt.rc_context(STYLE):
        figure, found = plt.subplots(
            rows, columns, figsize=size, squeeze=False, layout="constrained", **options
        )
        yield figure, found
        kind, drawn = path.suffix.removeprefix(".").lower(), io.BytesIO()
        svg = kind == "svg"
        figure.savefig(drawn, format=kind, dpi=dpi, metadata={"Date": None} if svg else None)
        data = drawn.getvalue()
        _files.write(path, _themed(data.decode()) if svg else data)
        plt.close(figure)


def bare(axes: Any) -> None:
    """Leave a grid behind the points, and two of the four sides."""
    axes.grid(visible=True, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _themed(svg: str) -> str:
    """Return the SVG on one line, with a style sheet that swaps its colours in a dark theme."""
    rules = "".join(
        f'[style*="{name}: {light}"] {{ {name}: {dark} !important; }}'
        for light, dark in DARK.items()
        for name in ("fill", "stroke")
    )
    style = f"<style>@media (prefers-color-scheme: dark) {{{rules}}}</style>"
    # matplotlib breaks lines only where XML and paths take any white space.
    flat = re.sub(r"\s*\n\s*", " ", re.sub(r">\s*\n\s*<", "><", svg.strip()))
    return flat.replace("<defs>", f"{style}<defs>", 1) + "\n"
