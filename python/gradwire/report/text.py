"""Bytes with their units, and tables for a terminal."""

from collections.abc import Collection, Mapping, Sequence


def size(nbytes: float) -> str:
    """Return bytes in B, kB, MB or GB, with four digits."""
    for unit in ("B", "kB", "MB"):
        if nbytes < 1000:
            return f"{nbytes:.4g} {unit}"
        nbytes /= 1000
    return f"{nbytes:.4g} GB"


def columns(table: Mapping[str, Sequence[str]], texts: Collection[str]) -> list[str]:
    """Return the lines of a table: those of `texts` flush left, all other columns flush right."""
    rows = zip(*([title, *cells] for title, cells in table.items()), strict=True)
    widths = [max(map(len, (title, *cells))) for title, cells in table.items()]
    return [
        "  ".join(
            cell.ljust(width) if title in texts else cell.rjust(width)
            for title, width, cell in zip(table, widths, row, strict=True)
        ).rstrip()
        for row in rows
    ]
