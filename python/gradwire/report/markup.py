"""HTML as text in which all external text is escaped, and charts made of it."""

import html
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

_VOID = {"link", "meta"}
_INVISIBLE = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}

T = TypeVar("T")


class Markup(str):
    """Text that is already markup: any other text is escaped when it is inserted."""

    __slots__ = ()


def _escape(value: str) -> str:
    """Escape a text that is not markup.

    Control characters, halves of surrogate pairs and marks that turn the direction of writing
    become U+FFFD: a browser could not show them, or would show what follows them out of order.
    """
    if isinstance(value, Markup):
        return value
    shown = (
        each if unicodedata.category(each) not in _INVISIBLE else "\N{REPLACEMENT CHARACTER}"
        for each in value
    )
    return html.escape("".join(shown))


def join(*children: str | None) -> Markup:
    """Concatenate pieces; None is skipped."""
    return Markup("".join(_escape(each) for each in children if each is not None))


def element(name: str, /, *children: str | None, **attributes: str | None) -> Markup:
    """Return an element: `Markup` in it is kept, other text escaped.

    An underscore at the end of an attribute's name is dropped (``class_``), others become hyphens.
    An attribute that is None is left out.
    """
    start = name + "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_escape(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{start}/>" if name in _VOID else f"<{start}>{join(*children)}</{name}>")


class Bar(NamedTuple):
    """A row of a chart: a label, a figure, and pieces of a bar (a CSS class, begin and end)."""

    label: str
    figure: str
    pieces: Sequence[tuple[str, float, float]]


def _percent(length: float, full: float) -> str:
    return f"{min(max(100 * length / full, 0.0), 100.0) if full > 0 else 0.0:.3f}%"


def chart(rows: Sequence[Bar]) -> Markup:
    """Return a chart with a horizontal bar per row; the longest fills the width."""
    full = max((end for row in rows for _, _, end in row.pieces), default=0.0)
    items = []
    for label, figure, pieces in rows:
        track = []
        for kind, begin, end in pieces:
            place = f"left:{_percent(begin, full)};width:{_percent(end - begin, full)}"
            track.append(element("i", class_=kind, style=place))
        items.append(
            element(
                "li",
                element("span", label, class_="label"),
                element("span", figure, class_="figure"),
                element("div", *track, class_="track"),
            )
        )
    return element("ul", *items, class_="chart")


def legend(meanings: Mapping[str, str]) -> Markup:
    """Return the meaning of each colour, by CSS class."""
    entries = (element("li", element("i", class_=k), meaning) for k, meaning in meanings.items())
    return element("ul", *entries, class_="legend")


def line_chart(points: Sequence[tuple[int, float]], write: Callable[[float], str]) -> Markup:
    """Return a line through points (step, value), from zero up to the largest value."""
    (first, _), (last, now) = points[0], points[-1]
    most = max(value for _, value in points)
    places = " ".join(
        f"{100 * (step - first) / max(last - first, 1):.3f},{100 - 100 * value / (most or 1.0):.3f}"
        for step, value in points
    )
    values = "; ".join(f"step {step:,}: {write(value)}" for step, value in points)
    svg = element(
        "svg",
        element("title", values),
        element("polyline", points=places, vector_effect="non-scaling-stroke"),
        viewBox="0 0 100 100",
        preserveAspectRatio="none",
        role="img",
        xmlns="http://www.w3.org/2000/svg",
    )
    return element(
        "div",
        element("span", f"at most {write(most)}", class_="label"),
        element("span", f"now {write(now)}", class_="figure"),
        svg,
        element("span", f"step {first:,}", class_="label"),
        element("span", f"step {last:,}", class_="figure"),
        class_="line",
    )


def table(
    columns: Mapping[str, Callable[[T], str]], rows: Sequence[T], bars: Sequence[str] = ()
) -> Markup:
    """Return a table whose columns, by heading, make the text of a cell from a row.

    In those of ``bars``, a bar behind the figure is as long as the row's attribute of that name.
    """
    names = {heading: heading.replace(" ", "_") for heading in bars}
    full = {bar: max(getattr(row, names[bar]) or 0.0 for row in rows) for bar in bars if rows}
    body = []
    for row in rows:
        cells = []
        for heading, cell in columns.items():
            length = getattr(row, names[heading]) if heading in bars else None
            style = f"--part:{_percent(length, full[heading])}" if length else None
            cells.append(element("td", cell(row), style=style))
        body.append(element("tr", *cells))
    head = element("tr", *(element("th", heading, scope="col") for heading in columns))
    content = element("table", element("thead", head), element("tbody", *body))
    return element("div", content, class_="scroll", tabindex="0")
