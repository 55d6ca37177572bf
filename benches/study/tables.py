"""Tables, the map in words, and what the study says of losses, as lines of Markdown."""

from collections import Counter
from collections.abc import Mapping, Sequence

from benches.accuracy.tables import head, row

from . import methods
from .aims import Aim, link_name
from .decisions import Decision
from .plan import LARGE, SECTIONS, Cell
from .reading import Outcome, Result, Verdict
from .times import StepTime

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
    """Return the winner of a cell; where nothing that compresses wins, the best of that too."""
    best = outcome.compressed
    shown = f"{short(best.method)} {factor(outcome.gain(best))}{mark(outcome, best)}"
    if outcome.winner is best:
        return shown
    return f"{standing(outcome)} ({shown})"


def standing(outcome: Outcome) -> str:
    """Return the dense method that wins, or that there is no winner."""
    winner = outcome.winner
    return f"*{Verdict.NOISE.value}*" if winner is None else f"**{winner.method}**"


BELOW = "†"
"""Beside a step that took less time than one without an exchange."""
UNKNOWN = "‡"
"""Beside what no curve stands for."""


def mark(outcome: Outcome, result: Result) -> str:
    """Return what to write beside a time that cannot be right."""
    return BELOW if outcome.below(result) else ""


def marks(found: Outcomes) -> list[str]:
    """Return what the mark means, if it stands anywhere."""
    every = [(outcome, each) for outcome in found.values() for each in outcome.results.values()]
    if not any(outcome.below(each) for outcome, each in every):
        return []
    text = f"{BELOW} less than the median step without any exchange: only noise can make it so."
    return ["", text]


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
            cells = [f"{span(each.bound.seconds)} {spread(each.bound)}" for each in mine]
            cells = cells if section == LARGE else []
        else:
            cells = [_time(each, each.results.get(name)) for each in mine]
        if cells:
            lines.append(row(name, *cells))
    return lines


def _time(outcome: Outcome, result: Result | None) -> str:
    if result is None:
        return "not trained"
    if result.seconds is None:
        return "not reached" if result.trained else f"{Verdict.UNTRAINED.value}{UNKNOWN}"
    shown = f"{span(result.seconds)} {spread(result.step)}{mark(outcome, result)}"
    if result.kind == "dense":
        size = "" if result.step.bucket is None else f", {result.step.bucket:g} MB"
        return f"{shown}{size}"
    gain = outcome.gain(result)
    marked = factor(gain)
    verdict = outcome.compare(result)
    if verdict is Verdict.SLOWER:
        marked = f"**{marked}**"
    elif verdict in (Verdict.NOISE, Verdict.UNSETTLED):
        marked = f"{marked}, {verdict.value}"
    elif verdict is Verdict.UNTRAINED:
        marked = f"{marked}, {verdict.value}{UNKNOWN}"
    return f"{shown} ({marked})"


def spread(step: StepTime) -> str:
    """Return half of the distance between the quartiles, or that there was one turn."""
    if step.count < 2:
        return "(one turn)"
    turns = f" of {step.count} turns" if step.count < 4 else ""
    return f"± {(step.high - step.low) / 2 / step.seconds:.0%}{turns}"


def span(seconds: float) -> str:
    """Return a time for reading."""
    if seconds >= 120:
        return f"{seconds / 60:.3g} min"
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"


def counts(found: Outcomes) -> tuple[int, int, int]:
    """Return how many cells a method that compresses wins, and a dense one, and neither."""
    won = sum(each.verdict is Verdict.FASTER for each in found.values())
    noise = sum(each.verdict is Verdict.NOISE for each in found.values())
    return won, len(found) - won - noise, noise


def summary(found: Outcomes) -> str:
    """Return in a sentence how often compression wins."""
    won, lost, noise = counts(found)
    return (
        f"Of {len(found)} cells, a method that compresses wins {won} and a dense one {lost}; in "
        f"{noise} the difference is within the noise."
    )


TOLD = {
    Verdict.SLOWER: "Slower than dense",
    Verdict.NOISE: "Within the noise",
    Verdict.MISSED: "Below the accuracy of dense",
    Verdict.UNSETTLED: "Not settled",
    Verdict.UNTRAINED: "Without a curve",
}


def losses(found: Outcomes) -> list[str]:
    """Return where compression loses: in words, then every cell that no such method wins."""
    lines = [summary(found)]
    for section in sections(found):
        mine = [each for each in found.values() if each.cell.section == section]
        text = f"* **{SECTIONS[section].title}**, {len(mine)} cells."
        for verdict, title in TOLD.items():
            names = Counter(
                each.method
                for outcome in mine
                for each in outcome.results.values()
                if each.kind != "dense" and outcome.compare(each) is verdict
            )
            if names:
                named = ", ".join(f"`{name}` in {count}" for name, count in names.items())
                text += f" {title}: {named}."
        lines.append(text)
    lost = [each for each in found.values() if each.verdict is not Verdict.FASTER]
    if lost:
        table = head("not won", "ranks", "link", "wins", "best that compresses", "its speed")
        for outcome in lost:
            best = outcome.compressed
            table.append(
                row(
                    SECTIONS[outcome.cell.section].title,
                    str(outcome.cell.ranks),
                    link_name(outcome.cell.link),
                    standing(outcome),
                    best.method,
                    factor(outcome.gain(best)),
                )
            )
        lines += ["", *table]
    return lines


def decisions(found: Outcomes) -> list[str]:
    """Return what ``auto`` decided in each cell, and whose curve stands for it, if one does."""
    lines = head("`auto` in", "ranks", "link", "averages by", "settled", "has the steps of")
    before, known = len(lines), True
    for cell, outcome in found.items():
        result = outcome.results.get(methods.AUTO)
        if result is None or result.decision is None:
            continue
        stands = ""
        if SECTIONS[cell.section].trained:
            stands = _like(result) if result.trained else "none"
        known = known and result.trained
        lines.append(
            row(
                SECTIONS[cell.section].title,
                str(cell.ranks),
                link_name(cell.link),
                result.decision.text + UNKNOWN * (not result.trained),
                _settled(result.decision),
                stands,
            )
        )
    if not known:
        text = f"{UNKNOWN} no curve was trained with what `auto` decided here:"
        lines += ["", f"{text} no time to accuracy is given, and it cannot win."]
    return lines if len(lines) > before else []


def _settled(decision: Decision) -> str:
    after = f" after {decision.after}" if decision.after else ""
    return f"yes{after}" if decision.settled else f"**no**{after}"


def _like(result: Result) -> str:
    """Return the method whose steps to the mark `auto` is given."""
    missed = ", which does not reach the mark" if result.steps is None else ""
    return f"{result.like} at dense training's rate{missed}"


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
