"""A page of reports: HTML in one file, with inline SVG, no script, and nothing from the network."""

from collections.abc import Mapping, Sequence
from importlib.resources import files

from gradwire.report.figures import Figures
from gradwire.report.html import sections
from gradwire.report.html.markup import Markup, element, join

__all__ = ["page"]

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""What the browser may load: nothing, whatever a parameter's name contains."""


def page(reports: Sequence[Figures]) -> str:
    """Return a page that shows these reports: one, or one per rank.

    Parameters
    ----------
    reports : sequence of Report
        If a rank has several, as in a file that was appended to, the one of the last step is shown,
        and how figures changed from one to the next.

    Returns
    -------
    str
        HTML that is XML, too. It opens offline, and its policy forbids it to load anything.

    Raises
    ------
    ValueError
        There is none.
    """
    if not reports:
        raise ValueError("there is no report to show")
    every: dict[int, list[Figures]] = {}
    for each in sorted(reports, key=lambda each: (each.rank, each.step)):
        every.setdefault(each.rank, []).append(each)
    shown = [group[-1] for group in every.values()]
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("link", rel="icon", href="data:,"),
        element("title", _title(shown)),
        element("style", Markup(_style())),
    )
    body = element("body", element("main", *_content(shown, every)))
    return "<!DOCTYPE html>\n" + element("html", head, body, lang="en") + "\n"


def _style() -> str:
    return (files(__package__) / "style.css").read_text("utf-8")


def _title(shown: Sequence[Figures]) -> str:
    first = shown[0]
    which = f"rank {first.rank}" if len(shown) == 1 else f"{len(shown)} ranks"
    return f"gradwire: {which} of {first.world_size}, {first.steps:,} steps"


def _content(shown: Sequence[Figures], every: Mapping[int, Sequence[Figures]]) -> list[Markup]:
    first, given = shown[0], sum(map(len, every.values()))
    carried = f"Frames are carried by {first.carried_by}."
    older = f" Of {given} reports, the last of each rank is shown." if given > len(shown) else ""
    parts = [
        element("h1", _title(shown)),
        element("p", element("code", first.codec), class_="quiet"),
        element("p", carried + older, class_="quiet"),
        *([element("p", first.decision)] if first.decision else []),
        *([element("p", element("code", first.schedule))] if first.schedule else []),
    ]
    if len(shown) == 1:
        return [*parts, _one(first, every)]
    parts += [element("h2", "Ranks"), sections.ranks(shown)]
    parts += [element("h2", f"Rank {first.rank}"), _one(first, every)]
    for each in shown[1:]:
        name = element("summary", element("b", f"Rank {each.rank}"))
        parts.append(element("details", name, _one(each, every)))
    return parts


def _one(report: Figures, every: Mapping[int, Sequence[Figures]]) -> Markup:
    return join(
        sections.summary(report),
        sections.over_time(every[report.rank]),
        element("h2", "On the wire"),
        sections.wire(report),
        element("h2", "Time"),
        sections.times(report),
        element("h2", "By layer"),
        sections.layers(report),
    )
