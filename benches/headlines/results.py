"""What was measured: one JSON object a line, with date, machine and versions."""

import datetime
import time
from collections.abc import Sequence
from typing import Any

from benches.accuracy.store import Lines, Record, versions
from benches.accuracy.tasks.task import Task
from benches.accuracy.worker import Tasks
from benches.compare.blocks import ROOT
from gradwire.cli.training.machine import machine

from .links import Row
from .tasks import TASKS
from .trainings import SETTINGS, Training

RESULTS = ROOT / "benches" / "results" / "headlines.jsonl"
EDITION = 1
"""Of what takes time; raise it when what is measured changes."""


class Results(Lines):
    """A file of finished runs and measurements."""

    def trained(self) -> dict[Training, Record]:
        """Return the runs whose settings are still the same."""
        found = {}
        for record in self.records:
            saved = record["key"]
            if "method" not in saved:
                continue
            run = Training(**{name: saved[name] for name in Training.__dataclass_fields__})
            if run.known() and run.key() == saved:
                found[run] = record
        return found

    def measured(self, headline: str, *, quick: bool = False) -> Record | None:
        """Return the last measurement of a headline; None if there is none."""
        wanted = measured_key(headline, quick)
        found = [record for record in self.records if record["key"] == wanted]
        return found[-1] if found else None

    def train(self, asked: Sequence[Training]) -> None:
        """Make the runs that are missing, one after the other, and keep each."""
        made = self.trained()
        missing = [each for each in dict.fromkeys(asked) if each not in made]
        tasks: Tasks = {}
        for left, each in zip(range(len(missing) - 1, -1, -1), missing, strict=True):
            begun = time.process_time()
            outcome = each.make(_task(each, tasks))
            seconds = round(time.process_time() - begun, 1)
            self.add({"key": each.key(), **outcome, "seconds": seconds, **circumstances()})
            end = "diverged" if outcome["diverged"] else outcome["points"][-1]
            print(
                f"{each.setting}: {each.method}, {each.ranks} ranks, rate {each.rate:g}, seed "
                f"{each.seed}: {end}, {outcome['bytes_per_step']:,.0f} bytes per step; {left} left",
                flush=True,
            )

    def keep(self, headline: str, rows: list[Row], *, quick: bool) -> None:
        """Keep a measurement."""
        self.add({"key": measured_key(headline, quick), "rows": rows, **circumstances()})


def measured_key(headline: str, quick: bool) -> dict[str, Any]:
    """Return what determines a measurement."""
    return {"edition": EDITION, "headline": headline, "quick": quick}


def circumstances() -> dict[str, Any]:
    """Return when and where."""
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "versions": versions(),
    }


def _task(run: Training, tasks: Tasks) -> Task:
    """Return the task of a run, made once."""
    found = SETTINGS[run.setting]
    if run.setting not in tasks:
        tasks[run.setting] = TASKS[found.task](found.batch)
    made: Task = tasks[run.setting]
    return made
