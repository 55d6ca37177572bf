"""Tables in the documentation written by a command, each between two comments that name it."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def find(text: str, name: str) -> str:
    """Return what stands between the comments of a block.

    Raises
    ------
    ValueError
        If there is no such block.
    """
    return text[slice(*_between(text, name))]


def replace(path: Path, name: str, lines: list[str]) -> None:
    """Put other lines between the comments of a block."""
    text = path.read_text()
    begin, end = _between(text, name)
    path.write_text(text[:begin] + "\n".join(["", *lines, ""]) + text[end:])


def _between(text: str, name: str) -> tuple[int, int]:
    opening, closing = f"<!-- {name}: by a command, begin -->\n", f"\n<!-- {name}: end -->"
    begin = text.index(opening) + len(opening)
    return begin, text.index(closing, begin)
