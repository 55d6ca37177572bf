"""What a run is compared with."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from . import pages

Document = dict[str, Any]
# The figure of a run with this number of threads, or None if the run has no such row.
Figure = Callable[[Document, int], float | None]
THREADS = (1, 2)


@dataclass(frozen=True)
class Aim:
    work: str
    limit: float
    figure: Figure
    unit: str = "copies"
    at_least: bool = False
    threads: tuple[int, ...] = THREADS

    @property
    def wanted(self) -> str:
        return f"{'≥' if self.at_least else '≤'} {self.limit:g} {self.unit}"

    def met(self, value: float) -> bool:
        # Compare with the precision that is printed.
        rounded = float(f"{value:.2g}") if self.unit == "copies" else value
        return rounded >= self.limit if self.at_least else rounded <= self.limit


Row = tuple[str, str, list[tuple[float, bool] | None]]


def rows(
    aims: Iterable[Aim], document: Document, threads: Sequence[int] = THREADS
) -> Iterator[Row]:
    """Yield work, aim, and per number of threads figure and verdict, for each measured aim."""
    for aim in aims:
        values = [aim.figure(document, t) if t in aim.threads else None for t in threads]
        if any(value is not None for value in values):
            yield aim.work, aim.wanted, [None if v is None else (v, aim.met(v)) for v in values]


def lines(headings: Sequence[str], rows: Iterable[Row]) -> list[str]:
    """Return the rows as a table in Markdown; figures that miss their aim are in italics."""
    cells = ([work, wanted, *map(_cell, values)] for work, wanted, values in rows)
    return pages.table(headings, cells, right=[i >= 2 for i in range(len(headings))])


def _cell(value: tuple[float, bool] | None) -> str:
    if value is None:
        return ""
    figure, met = value
    return f"{figure:.3g}" if met else f"*{figure:.3g}*"
