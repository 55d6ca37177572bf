"""How much is left, in minutes."""

import time

from . import curves, methods
from .plan import PLENTY, SECTIONS, Cell, Plan
from .store import Store

NUMEL = {"25M": 25.2e6, "text": 0.43e6, "clicks": 0.34e6, "fashion": 0.08e6}
COMPUTE = {"25M": 0.5, "text": 0.03, "clicks": 0.005, "fashion": 0.04}
"""Entries of the models, and seconds of a step without exchange with two ranks of a core each."""

RUN = {"text": 110.0, "clicks": 25.0, "fashion": 85.0}
"""Seconds of a training run on one core, until runs of this machine are there."""

SETTLING = 60
"""Steps that ``auto`` takes until it has settled, about."""

START, PAUSE = 15.0, 0.06
"""Seconds until the models of a section are made, and beside the steps of a turn."""


class Left:
    """The time that is left of a plan."""

    def __init__(self, plan: Plan, kept: Store, jobs: int) -> None:
        self._plan, self._kept, self._jobs = plan, kept, jobs
        self._began = time.monotonic()

    def there(self) -> str:
        """Return what is there already."""
        cells = self._kept.cells(self._plan)
        runs = curves.all_curves(self._kept, self._plan)
        return f"{len(cells)} of {len(self._plan.cells())} cells and {len(runs)} curves are there"

    def text(self) -> str:
        """Return the time for reading."""
        minutes = round(self.seconds() / 60)
        return f"{minutes // 60} h {minutes % 60:02d} min" if minutes >= 60 else f"{minutes} min"

    def seconds(self) -> float:
        """Return the time of all cells and runs that are missing."""
        there = self._kept.cells(self._plan)
        missing = [cell for cell in self._plan.cells() if cell not in there]
        starts = len({(cell.ranks, cell.section) for cell in missing})
        steps = sum(expected(cell, self._plan) for cell in missing)
        return steps + START * starts + self._runs()

    def _runs(self) -> float:
        made = curves.all_curves(self._kept, self._plan)
        wanted = curves.wanted(self._plan, made)
        # A series whose rate is not known yet needs the other seeds as well.
        more = [
            (each.section, self._plan.seeds - 1)
            for each in curves.narrowed(self._plan, made)
            if curves.chosen_rate(each, made) is None
        ]
        own = self._kept.curves()
        seconds = 0.0
        for section, count in [*((run.section, 1) for run in wanted), *more]:
            task = SECTIONS[section].task
            known = [
                each["seconds"] for run, each in own.items() if SECTIONS[run.section].task == task
            ]
            seconds += count * (sum(known) / len(known) if known else RUN[task])
        return seconds / self._jobs


def expected(cell: Cell, plan: Plan) -> float:
    """Return about how many seconds a cell takes."""
    section = SECTIONS[cell.section]
    ring = 2 * (cell.ranks - 1) / cell.ranks
    compute = COMPUTE[section.task] * (cell.ranks / 2 if cell.section == "25M" else 1)
    total = 0.0
    for _, method, bucket in methods.contestants(cell.section):
        share = {methods.FP32: 4.0, methods.BF16: 2.0}.get(method, 0.05)
        wire = 0.0 if cell.link is None else 8 * ring * share * NUMEL[section.task] / cell.link
        turn = section.steps_a_turn * (compute + wire)
        turns = min(plan.turns, max(1 if bucket not in (None, 25.0) else 2, PLENTY / turn))
        total += turns * (turn + PAUSE)
        if method == methods.AUTO:
            # Some steps of a dense method, and some dozen of its own.
            dense = 0.0 if cell.link is None else 8 * ring * 4 * NUMEL[section.task] / cell.link
            total += min(plan.settling, SETTLING * (compute + wire) + 5 * dense)
    return total
