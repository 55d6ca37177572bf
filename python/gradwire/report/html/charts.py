"""Charts of bars, as inline SVG that is as wide as its place.

Positions along the width are percentages, heights and letters are pixels: so a chart fits a phone
and a wide screen without scaling its text.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from gradwire.report.html.markup import Markup, element, join

__all__ = ["Bar", "bars", "drawing", "legend", "percent", "shortened"]

_ROW = 38
_BAR = 10
_LETTERS = {"long": 44, "short": 34}
"""Of a label, on a wide screen and on a narrow one: the style sheet shows one of them."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One row of a chart.

    Attributes
    ----------
    label : str
        What it is about, on the left.
    value : str
        The figure, on the right.
    parts : tuple of (str, float)
        The pieces of the bar from left to right: a CSS class and a length each.
    """

    label: str
    value: str
    parts: tuple[tuple[str, float], ...]


def bars(
    title: str,
    description: str,
    rows: Sequence[Bar],
    *,
    most: float | None = None,
    mark: float | None = None,
) -> Markup:
    """Return a chart with a horizontal bar per row.

    Parameters
    ----------
    title, description : str
        For readers of the screen: what the chart is, and what it says.
    rows : sequence of Bar
    most : float, optional
        The length that fills the width; the longest bar by default.
    mark : float, optional
        A length that a dashed line marks.
    """
    longest = max((sum(part for _, part in row.parts) for row in rows), default=0.0)
    full = max(longest, mark or 0.0) if most is None else most
    drawn = [_bar(row, index * _ROW, full) for index, row in enumerate(rows)]
    if mark is not None and full > 0:
        at = percent(mark, full)
        for base in range(20, len(rows) * _ROW, _ROW):
            ends = {"y1": base - 2, "y2": base + _BAR + 2}
            drawn.append(element("line", x1=at, x2=at, class_="mark", **ends))
    return drawing(title, description, len(rows) * _ROW, *drawn)


def _bar(row: Bar, top: int, full: float) -> Markup:
    base = top + 20
    track = element("rect", x="0", y=base, width="100%", height=_BAR, rx=2, class_="track")
    pieces, start = [], 0.0
    for name, length in row.parts:
        x, width = percent(start, full), percent(length, full)
        if length > 0:
            pieces.append(element("rect", x=x, y=base, width=width, height=_BAR, class_=name))
        start += length
    return element(
        "g",
        element("title", f"{row.label}: {row.value}"),
        *_label(row.label, top + 14),
        element("text", row.value, x="100%", y=top + 14, class_="value"),
        track,
        *pieces,
    )


def _label(name: str, y: float) -> list[Markup]:
    if len(name) <= _LETTERS["short"]:
        return [element("text", name, x="0", y=y, class_="label")]
    return [
        element("text", shortened(name, letters), x="0", y=y, class_=f"label {width}")
        for width, letters in _LETTERS.items()
    ]


def drawing(title: str, description: str, height: float, *children: Markup) -> Markup:
    """Return a drawing of this height in pixels, with a title and a description."""
    return element(
        "svg",
        element("title", title),
        element("desc", description),
        *children,
        role="img",
        width="100%",
        height=height,
        aria_label=title,
        xmlns="http://www.w3.org/2000/svg",
    )


def legend(*entries: tuple[str, str]) -> Markup:
    """Return a list of what the colours mean: a CSS class and its meaning each."""
    return element(
        "ul",
        join(
            *(element("li", _swatch(name), element("span", meaning)) for name, meaning in entries)
        ),
        class_="legend",
    )


def _swatch(name: str) -> Markup:
    square = element("rect", width="100%", height="100%", rx=2, class_=name)
    return element("svg", square, width=12, height=12, aria_hidden="true")


def percent(value: float, full: float) -> str:
    """Return a length as a percentage of the whole width, within it."""
    share = 100 * value / full if full > 0 else 0.0
    return f"{min(max(share, 0.0), 100.0):.3f}%"


def shortened(name: str, letters: int) -> str:
    """Leave out a part of a long name: its end says most."""
    if len(name) <= letters:
        return name
    left = letters // 5
    return f"{name[:left]}…{name[len(name) - (letters - 1 - left) :]}"
