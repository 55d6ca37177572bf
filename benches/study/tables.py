"""Tables, the map in words, and what the study says of losses, as lines of Markdown."""

from collections.abc import Mapping, Sequence

from benches.accuracy.tables import head, row

from . import methods
from .aims import Aim, link_name
from .plan import LARGE, SECTIONS, Cell
from .reading import Outcome, Result

Outcomes = Mapping[Cell, Outcome]


def short(method: str) -> str:
    """Return a method's name for a cell of the map."""
    return method.removesuffix(", warm-up").replace("torch PowerSGD, rank 4", "torch PowerSGD")


def links(found: Outcomes, section: str) -> list[int | None]:
    """Return the links of a section, the slowest first."""
    every = {cell.link for cell in found if cell.section == section}
    return sorted(every, key=lambda each: float("inf") if each is None else each)


def sections(found: Outcomes) -> list[str]:
    """Return the sections that have an outcome, in the order of the plan."""
    return [name for name in SECTIONS if any(cell.section == name for cell in found)]


def map_of(found: Outcomes) -> list[str]:
    """Return the map: the winner of every cell, and how many times as fast as the best dense."""
    parts = []
    for section in sections(found):
        lines = head(f"{SECTIONS[section].title}, ranks", *map(link_name, links(found, section)))
        for ranks in sorted({cell.ranks for cell in found if cell.section == section}):
            cells = []
            for link in links(found, section):
                outcome = found.get(Cell(section, ranks, link))
                cells.append("" if outcome is None else in_words(outcome))
            lines.append(row(str(ranks), *cells))
        parts.append(lines)
    return _joined(parts)


def in_words(outcome: Outcome) -> str:
    """Return the winner of a cell; where that is a dense method, the best of the others too."""
    winner = outcome.winner
    if winner.kind != "dense":
        return f"{short(winner.method)} {factor(outcome.gain(winner))}"
    best = outcome.compressed
    return f"**{winner.method}** ({short(best.method)} {factor(outcome.gain(best))})"


def factor(gain: float) -> str:
    """Return how many times as fast, for reading."""
    if gain == 0:
        return "not reached"
    return f"{gain:.0f} x" if gain >= 9.95 else f"{gain:.1f} x" if gain >= 1.1 else f"{gain:.2f} x"


def times(found: Outcomes, section: str, ranks: int) -> list[str]:
    """Return the table of one model with so many ranks: a row for each method."""
    columns = [link for link in links(found, section) if Cell(section, ranks, link) in found]
    mine = [found[Cell(section, ranks, link)] for link in columns]
    lines = head("method", *map(link_name, columns))
    for name in methods.compared(section):
        if name == methods.NONE:
            cells = [span(each.bound.seconds) for each in mine] if section == LARGE else []
        else:
            cells = [_time(each, each.results.get(name)) for each in mine]
        if cells:
            lines.append(row(name, *cells))
    return lines


def _time(outcome: Outcome, result: Result | None) -> str:
    if result is None:
        return "not trained"
    if result.seconds is None:
        return "not reached"
    spread = (result.step.high - result.step.low) / 2 / result.step.seconds
    shown = f"{span(result.seconds)} ± {spread:.0%}"
    if result.kind == "dense":
        size = "" if result.step.bucket is None else f", {result.step.bucket:g} MB"
        return f"{shown}{size}"
    gain = outcome.gain(result)
    marked = factor(gain)
    return f"{shown} ({marked if gain >= 1 else f'**{marked}**'})"


def span(seconds: float) -> str:
    """Return a time for reading."""
    if seconds >= 120:
        return f"{seconds / 60:.3g} min"
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"


def summary(cells: int, won: int) -> str:
    """Return in a sentence how often compression wins."""
    return (
        f"Of {cells} cells, a method that compresses wins {won}; in the other {cells - won}, dense "
        "training is as fast or faster."
    )


def losses(found: Outcomes) -> list[str]:
    """Return where compression loses: in words, then every cell that no such method wins."""
    won = [each for each in found.values() if each.winner.kind != "dense"]
    lines = [summary(len(found), len(won))]
    for section in sections(found):
        mine = [each for each in found.values() if each.cell.section == section]
        counts: dict[str, int] = {}
        never: dict[str, int] = {}
        for outcome in mine:
            for each in outcome.losers():
                kept = never if each.seconds is None else counts
                kept[each.method] = kept.get(each.method, 0) + 1
        slower = ", ".join(f"`{name}` in {count}" for name, count in counts.items()) or "none"
        missed = ", ".join(f"`{name}` in {count}" for name, count in never.items())
        text = f"* **{SECTIONS[section].title}**, {len(mine)} cells. Slower than dense: {slower}."
        lines.append(text + (f" Below the accuracy of dense: {missed}." if missed else ""))
    lost = [each for each in found.values() if each.winner.kind == "dense"]
    if lost:
        table = head("lost", "ranks", "link", "dense", "best that compresses", "its speed")
        for outcome in lost:
            best = outcome.compressed
            table.append(
                row(
                    SECTIONS[outcome.cell.section].title,
                    str(outcome.cell.ranks),
                    link_name(outcome.cell.link),
                    outcome.winner.method,
                    best.method,
                    factor(outcome.gain(best)),
                )
            )
        lines += ["", *table]
    return lines


def aims(every: Sequence[Aim]) -> list[str]:
    """Return a line for each aim."""
    lines = []
    for each in every:
        sign = "at least" if each.least else "at most"
        verdict = "holds" if each.met else "**falls short**"
        lines.append(f"* {each.text}: {each.value:.3g} ({sign} {each.limit:g}), {verdict}.")
    return lines


def _joined(parts: Sequence[list[str]]) -> list[str]:
    lines: list[str] = []
    for part in parts:
        lines += [*part, ""]
    return lines[:-1]
