"""How much is left, in minutes."""

import time

from . import curves, estimates, methods
from .plan import PLENTY, SECTIONS, Cell, Plan
from .store import Store

RUN = {"text": 110.0, "clicks": 25.0, "fashion": 85.0}
"""Seconds of a training run on one core, until runs of this machine are there."""

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
    dense = {methods.FP32: estimates.FP32, methods.BF16: estimates.BF16}
    total = 0.0
    for _, method, bucket in methods.contestants(cell.section):
        step = estimates.step(cell, dense.get(method, estimates.CODEC))
        turn = section.steps_a_turn * step
        turns = min(plan.turns, max(1 if bucket not in (None, 25.0) else 2, PLENTY / turn))
        total += turns * (turn + PAUSE)
        if method == methods.AUTO:
            total += estimates.settling(cell)
    return total
