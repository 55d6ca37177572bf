"""What was measured: one JSON object a line, with date, machine and versions."""

import time
from collections.abc import Sequence
from typing import Any

from benches.accuracy.store import Lines, Record
from benches.accuracy.tasks.task import Task
from benches.accuracy.worker import Tasks
from benches.circumstances import circumstances, same_machine, same_versions
from benches.compare.blocks import ROOT

from .links import Row
from .tasks import TASKS
from .trainings import SETTINGS, Training

RESULTS = ROOT / "benches" / "results" / "headlines.jsonl"
QUICK = RESULTS.with_name("headlines-quick.jsonl")
"""Of a trial, which is not kept among the results."""

EDITIONS = {"accordion": 1, "sidco": 2, "dryden": 1}
"""Of what takes time; raise one when what is measured changes."""


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
        """Return the measurement of a headline that is shown; None if there is none.

        It is the last of those with the most rounds, of the present edition if there is one, and
        whatever machine it is from: a page names that.
        """
        found = [
            record
            for record in self.records
            if (record["key"].get("headline"), record["key"]["quick"]) == (headline, quick)
        ]
        found.sort(key=lambda each: (each["key"]["edition"], each["key"]["rounds"]))
        return found[-1] if found else None

    def complete(self, headline: str, *, rounds: int, quick: bool = False) -> bool:
        """Tell whether a headline was measured so often, on such a machine with these versions."""
        found = self.measured(headline, quick=quick)
        return (
            found is not None
            and found["key"] == measured_key(headline, quick, max(rounds, found["key"]["rounds"]))
            and same_machine(found)
            and same_versions(found)
        )

    def train(self, asked: Sequence[Training]) -> None:
        """Make the runs that are missing, one after the other, and keep each.

        Those that were made with other versions are made again.
        """
        made = {run for run, record in self.trained().items() if same_versions(record)}
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

    def keep(self, headline: str, rows: list[Row], *, rounds: int, quick: bool) -> None:
        """Keep a measurement."""
        key = measured_key(headline, quick, rounds)
        self.add({"key": key, "rows": rows, **circumstances()})


def measured_key(headline: str, quick: bool, rounds: int) -> dict[str, Any]:
    """Return what determines a measurement."""
    return {"edition": EDITIONS[headline], "headline": headline, "quick": quick, "rounds": rounds}


def _task(run: Training, tasks: Tasks) -> Task:
    """Return the task of a run, made once."""
    found = SETTINGS[run.setting]
    if run.setting not in tasks:
        tasks[run.setting] = TASKS[found.task](found.batch)
    made: Task = tasks[run.setting]
    return made
