"""Tables in Markdown, and the blocks of pages that commands write."""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
UNITS = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6))


def table(headings: Sequence[str], rows: Iterable[Sequence[object]], *, texts: int = 1) -> str:
    """Return a table whose first columns are texts and whose others are figures."""
    import pandas  # what only measures does without

    frame = pandas.DataFrame([list(map(str, row)) for row in rows], columns=list(headings))
    align = ["left"] * texts + ["right"] * (len(headings) - texts)
    return str(frame.to_markdown(index=False, colalign=align, disable_numparse=True))


def span(seconds: float) -> str:
    unit, size = next((u, s) for u, s in UNITS if seconds >= s or u == "µs")
    return f"{seconds / size:.3g} {unit}"


def with_error(value: float, error: float, sign: str = "") -> str:
    """Return a mean and its standard error, if that is known."""
    if math.isnan(value):
        return "diverged"
    shown = f"{round(value, 2) + 0.0:{sign}.2f}"  # never -0.00
    return shown if math.isnan(error) else f"{shown} ± {error:.2f}"


def judged(what: str, value: float, most: float, than: str = "") -> str:
    """Return a line on whether a target is met; ``than`` follows its number, as in `` higher``."""
    verdict = "met" if value <= most else "**missed**"
    return f"{what} (target: at most {most:g}{than}{';' if ',' in than else ','} {verdict})."


def find(text: str, name: str) -> str:
    """Return what stands between the two comments of a block; ValueError if there is none."""
    return text[slice(*_between(text, name))]


def replace(path: Path, name: str, block: str) -> None:
    text = path.read_text("utf-8")
    begin, end = _between(text, name)
    path.write_text(f"{text[:begin]}\n{block}\n{text[end:]}", "utf-8")


def _between(text: str, name: str) -> tuple[int, int]:
    opening, closing = f"<!-- {name}: by a command, begin -->\n", f"\n<!-- {name}: end -->"
    begin = text.index(opening) + len(opening)
    return begin, text.index(closing, begin)
