"""What the study has to show, cell by cell, whether it does or not."""

from collections.abc import Mapping
from dataclasses import dataclass

from gradwire.cli.plan.quantities import format_rate

from . import methods
from .plan import LARGE, Cell
from .reading import Outcome, Result

SLOW = 100_000_000
TIMES = {methods.FP32: 10.0, methods.BF16: 5.0}
"""Step rate of the best method that compresses, in those of dense ones, at 0.1 Gbit/s."""

NEAR = 1.1
"""Step time in those of a step without any exchange, where the link can carry what is sent."""


@dataclass(frozen=True)
class Aim:
    """One figure beside its limit."""

    text: str
    value: float
    limit: float
    least: bool

    @property
    def met(self) -> bool:
        return self.value >= self.limit if self.least else self.value <= self.limit


def rates(outcomes: Mapping[Cell, Outcome]) -> list[Aim]:
    """Return the gain in step rate of the best of ours on the large model at 0.1 Gbit/s."""
    found = []
    for cell, outcome in outcomes.items():
        if (cell.section, cell.link) != (LARGE, SLOW):
            continue
        ours = _ours(outcome)
        if not ours:
            continue
        best = min(ours, key=lambda each: each.step.seconds)
        for name, limit in TIMES.items():
            value = outcome.results[name].step.seconds / best.step.seconds
            text = f"{cell.ranks} ranks: {best.method}, step rate in those of {name}"
            found.append(Aim(text, value, limit, least=True))
    return found


def _ours(outcome: Outcome) -> list[Result]:
    """Return the methods of gradwire that are known to end as accurate as dense training."""
    every = [each for each in outcome.results.values() if each.kind in ("ours", "auto")]
    return [each for each in every if each.may_win]


def carried(outcome: Outcome, method: str) -> bool:
    """Tell whether the link can carry what a method sends in the time of a step without it."""
    link = outcome.cell.link
    if link is None:
        return True
    return 8 * outcome.results[method].step.nbytes / link <= outcome.bound.seconds


def near(outcomes: Mapping[Cell, Outcome], section: str = LARGE) -> list[Aim]:
    """Return the best step time of ours beside a step without exchange, wherever it is carried."""
    found = []
    for cell, outcome in outcomes.items():
        if cell.section != section:
            continue
        ours = [each for each in _ours(outcome) if carried(outcome, each.method)]
        if ours:
            best = min(ours, key=lambda each: each.step.seconds)
            text = f"{cell.ranks} ranks, {link_name(cell.link)}: {best.method}"
            value = best.step.seconds / outcome.bound.seconds
            found.append(Aim(text, value, NEAR, least=False))
    return found


def link_name(link: int | None) -> str:
    """Return a link for reading."""
    return "unshaped" if link is None else format_rate(link)
