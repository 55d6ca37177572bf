"""Figures and tables as text: what terminals and the documentation show alike."""

from collections.abc import Iterable, Sequence

UNITS = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6))


def span(seconds: float) -> str:
    """Return a time with three significant digits."""
    unit, size = next((u, s) for u, s in UNITS if seconds >= s or u == "µs")
    return f"{seconds / size:.3g} {unit}"


def table(
    headings: Sequence[str], rows: Iterable[Sequence[str]], *, right: Sequence[bool] | None = None
) -> list[str]:
    """Return the lines of a table in Markdown; columns but the first go to the right by default."""
    right = [False, *[True] * (len(headings) - 1)] if right is None else right
    rules = ["---:" if each else "---" for each in right]
    return [f"| {' | '.join(cells)} |" for cells in (headings, rules, *rows)]
