"""Elements of a page, as text in which whatever came from outside is escaped."""

import html
import unicodedata
from typing import TypeAlias

__all__ = ["Child", "Markup", "element", "join", "text"]


class Markup(str):
    """Text that is markup already: all other text is escaped where it becomes a part of it."""

    __slots__ = ()


Child: TypeAlias = str | None
"""What goes into an element: markup, text to be escaped, or nothing."""

_VOID = {"br", "col", "line", "link", "meta", "polyline", "rect"}
_INVISIBLE = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


def text(value: str) -> Markup:
    """Escape a text.

    Control characters, halves of surrogate pairs and marks that turn the direction of writing
    become U+FFFD: a browser could not show them, or would show what follows them out of order.
    """
    if isinstance(value, Markup):
        return value
    shown = (
        each if unicodedata.category(each) not in _INVISIBLE else "\N{REPLACEMENT CHARACTER}"
        for each in value
    )
    return Markup(html.escape("".join(shown)))


def element(name: str, /, *children: Child, **attributes: str | float | None) -> Markup:
    """Return an element.

    Parameters
    ----------
    name : str
        The tag.
    *children : str or None
        What is in it: `Markup` as it is, other text escaped.
    **attributes : str, float or None
        Attributes; None leaves one out. An underscore at the end is dropped (``class_``), others
        become hyphens (``aria_labelledby``).
    """
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{text(_plain(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID and not children:
        return Markup(f"<{name}{given}/>")
    return Markup(f"<{name}{given}>{join(*children)}</{name}>")


def join(*children: Child) -> Markup:
    """Return several pieces, one after another."""
    return Markup("".join(text(each) for each in children if each is not None))


def _plain(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:.6g}"
