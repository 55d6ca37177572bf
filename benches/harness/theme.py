"""The look of figures in the documentation: an SVG follows the reader's light or dark theme."""

import io
import re
from pathlib import Path
from typing import Any

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


def save(figure: Any, path: Path, **options: Any) -> None:
    """Write a matplotlib figure, completely or not at all."""
    kind, drawn = path.suffix.removeprefix(".").lower(), io.BytesIO()
    svg = kind == "svg"
    figure.savefig(drawn, format=kind, metadata={"Date": None} if svg else None, **options)
    data = drawn.getvalue()
    _files.write(path, _themed(data.decode()) if svg else data)


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
