"""The finished runs: one JSON object a line."""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benches.accuracy import document
from benches.accuracy.methods import METHODS
from benches.accuracy.run import run as run_dense
from benches.accuracy.store import Lines, Record, versions
from benches.accuracy.tasks.text import Text
from benches.compare.blocks import ROOT

from .settings import SETTINGS
from .training import EVALUATIONS, train

RESULTS = ROOT / "benches" / "results" / "diloco.jsonl"
EDITION = 1
"""Raise it when the task or the arithmetic changes: all runs are then made again."""

ACCURACY = document.PUBLISHED
"""It has dense training with the same tokens and seeds."""

DENSE = "dense data parallelism"
STEPS, RATE = 2400, 0.002
"""Of every run, and the learning rate of dense training: its best one in docs/accuracy.md."""


@dataclass(frozen=True)
class Run:
    """One training run."""

    setting: str
    seed: int
    steps: int = STEPS
    ranks: int = 2

    def key(self) -> dict[str, Any]:
        """Return everything that determines the run, as plain data."""
        if self.setting == DENSE:
            config = {**METHODS["dense AdamW"].config(), "rate": RATE}
        else:
            config = SETTINGS[self.setting].config()
        return {"edition": EDITION, **asdict(self), "config": config}

    def make(self, task: Text) -> Record:
        """Train."""
        begun = time.process_time()
        if self.setting == DENSE:
            found = run_dense(
                task,
                METHODS["dense AdamW"],
                RATE,
                ranks=self.ranks,
                seed=self.seed,
                steps=self.steps,
                evaluations=EVALUATIONS,
            )
            outcome = {**asdict(found), "largest_message": found.bytes_per_step}
        else:
            setting = SETTINGS[self.setting]
            found = train(task, setting, ranks=self.ranks, seed=self.seed, steps=self.steps)
            outcome = asdict(found)
        return {
            "key": self.key(),
            **outcome,
            "seconds": round(time.process_time() - begun, 1),
            "facts": task.facts(),
            "versions": versions(),
        }


def dense() -> dict[Run, Record]:
    """Return the dense runs of the document of accuracy, at the rate that is the best there."""
    found = {}
    for record in document.read(ACCURACY)["runs"]:
        key = record["key"]
        asked = ("text", "dense AdamW", 2, RATE, STEPS)
        names = ("section", "method", "ranks", "learning_rate", "steps")
        if tuple(key[name] for name in names) == asked:
            nbytes = record["bytes_per_step"]
            found[Run(DENSE, key["seed"])] = {**record, "largest_message": nbytes}
    return found


class Results(Lines):
    """A file of finished runs."""

    def made(self) -> dict[Run, Record]:
        """Return the runs that there are, those of dense training in another document included."""
        return {**dense(), **self.own()}

    def own(self) -> dict[Run, Record]:
        """Return the runs of the file whose settings are still the same."""
        found = {}
        for record in self.records:
            saved = record["key"]
            run = Run(**{name: saved[name] for name in Run.__dataclass_fields__})
            if (run.setting == DENSE or run.setting in SETTINGS) and run.key() == saved:
                found[run] = record
        return found

    def make(self, asked: Sequence[Run], task: Text) -> None:
        """Make the runs that are missing, one after the other, and keep each."""
        made = self.made()
        missing = [each for each in dict.fromkeys(asked) if each not in made]
        for left, each in zip(range(len(missing) - 1, -1, -1), missing, strict=True):
            record = each.make(task)
            self.add(record)
            shown = "diverged" if record["diverged"] else f"{record['points'][-1]['loss']:.4f}"
            print(
                f"{each.setting}, {each.ranks} ranks, seed {each.seed}: loss {shown}, "
                f"{record['bytes_per_step']:,.0f} bytes per step; {left} runs left",
                flush=True,
            )
