"""Finished runs, one JSON object a line, each with everything that determines it."""

import functools
import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benches.harness.machine import machine

from .methods import METHODS, current
from .plan import SECTIONS, Plan, Run, Scores

SCHEMA = 1

Record = dict[str, Any]


@functools.cache
def versions() -> dict[str, str]:
    """Return the versions that the figures depend on."""
    found = {name: version(name) for name in ("gradwire", "numpy", "torch")}
    return {"python": platform.python_version(), **found}


def key(run: Run, steps: int) -> dict[str, Any]:
    """Return everything that determines a run, as plain data."""
    section = SECTIONS[run.section]
    return {
        "schema": SCHEMA,
        "section": run.section,
        "task": section.task,
        "edition": section.edition,
        "method": run.method,
        "config": METHODS[run.method].config(),
        "ranks": run.ranks,
        "learning_rate": run.learning_rate,
        "seed": run.seed,
        "steps": steps,
        "versions": dict(versions()),
    }


def same(saved: dict[str, Any], key: dict[str, Any]) -> bool:
    """Tell whether a saved key is of what a key says."""
    return {**saved, "config": current(saved["config"])} == key


class Lines:
    """A file of records, read once and then appended to.

    An interrupted write leaves an incomplete line, which is passed over. Nothing but the end of the
    file is ever written, so another process may read it at any time.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.records: list[Record] = []
        self._ended = True
        if self.path.exists():
            text = self.path.read_text("utf-8")
            self._ended = text.endswith("\n") or not text
            self.records = [each for line in text.splitlines() for each in _parsed(line)]

    def add(self, record: Record) -> None:
        """Append a run."""
        before = "" if self._ended else "\n"
        with self.path.open("a", encoding="utf-8") as file:
            file.write(f"{before}{json.dumps(record)}\n")
        self._ended = True
        self.records.append(record)


class Store(Lines):
    """The runs of a folder, and those that were published before."""

    def __init__(self, folder: Path, published: Sequence[Record] = ()) -> None:
        super().__init__(folder / "runs.jsonl")
        self._published = published

    def of(self, plan: Plan) -> dict[Run, Record]:
        """Return the runs that belong to a plan, made with the same versions and settings."""
        found = {}
        for record in [*self._published, *self.records]:
            saved = record["key"]
            if saved.get("section") not in plan.sections or saved.get("method") not in METHODS:
                continue
            run = run_of(saved)
            if same(saved, key(run, plan.steps(run.section))):
                found[run] = record
        return found


def processor(machine: Mapping[str, Any]) -> str:
    """Return the name of a machine's processor, or its architecture where it has none."""
    return str(machine.get("processor", machine["architecture"]))


def _parsed(line: str) -> list[Record]:
    """Return the record of a line, or nothing if it is not whole."""
    try:
        return [json.loads(line)]
    except ValueError:
        return []


@dataclass
class Planned:
    """The runs of a plan that a store lacks, for a pool."""

    plan: Plan
    kept: Store

    def missing(self) -> list[Run]:
        """Return the runs that are known to be needed, most telling first."""
        return self.plan.missing(scores(self.kept.of(self.plan)))

    def order(self, run: Run) -> tuple[Run, int]:
        """Return what a process has to know of a run."""
        return run, self.plan.steps(run.section)

    def keep(self, run: Run, outcome: dict[str, Any]) -> Record:
        """Keep what a process has answered."""
        made = {"processor": processor(machine())}
        record = {"key": key(run, self.plan.steps(run.section)), **outcome, **made}
        self.kept.add(record)
        return record


def run_of(saved: dict[str, Any]) -> Run:
    """Return the run that a key describes."""
    names = ("section", "method", "ranks", "learning_rate", "seed")
    return Run(**{name: saved[name] for name in names})


def scores(records: dict[Run, Record]) -> Scores:
    """Return the measure of every run; minus infinity if it diverged."""
    return {
        run: float("-inf") if record["diverged"] else SECTIONS[run.section].value(record["points"])
        for run, record in records.items()
    }
