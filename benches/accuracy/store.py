"""Finished runs, each with everything that determines it, and the document that publishes them."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benches.harness import recipes, results
from benches.harness.results import Record

from .methods import METHODS
from .plan import SECTIONS, Plan, Run, Scores

SCHEMA = 1
PUBLISHED = results.FOLDER / "2026-11-29-accuracy.json"
"""The document of docs/accuracy.md, from which later runs go on."""


def versions() -> dict[str, str]:
    return results.versions("gradwire", "numpy", "torch")


def key(run: Run, steps: int) -> dict[str, Any]:
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
    }


def current(saved: Mapping[str, Any]) -> dict[str, Any]:
    """Return a key as it would be recorded now: options newer than the record have defaults."""
    config = saved["config"]
    # Of a codec that is none any more, the record stays as it is.
    with contextlib.suppress(TypeError, ValueError):
        config = {**config, "codec": recipes.current(config["codec"])}
    return {**saved, "config": config}


def run_of(saved: Mapping[str, Any]) -> Run:
    names = ("section", "method", "ranks", "learning_rate", "seed")
    return Run(**{name: saved[name] for name in names})


def of_plan(
    plan: Plan, records: Sequence[Record], here: Mapping[str, str] | None = None
) -> dict[Run, Record]:
    """Return the records that belong to a plan: if versions are given, those made with them."""
    found = {}
    for record in records:
        saved = dict(record["key"])
        made_with = saved.pop("versions")
        if saved["section"] not in plan.sections or saved["method"] not in METHODS:
            continue
        run = run_of(saved)
        right = here is None or made_with == here
        if right and current(saved) == key(run, plan.steps(run.section)):
            found[run] = record
    return found


def scores(records: Mapping[Run, Record]) -> Scores:
    """Return the measure of every run; minus infinity if it diverged."""
    return {
        run: float("-inf") if record["diverged"] else SECTIONS[run.section].value(record["points"])
        for run, record in records.items()
    }


def order(run: Run, steps: int) -> tuple[str, Any, float, dict[str, Any]]:
    """Return what a process is asked to train: see `pool.train`."""
    section = SECTIONS[run.section]
    options = {"ranks": run.ranks, "seed": run.seed, "steps": steps}
    options["evaluations"] = section.evaluations
    return section.task, METHODS[run.method], run.learning_rate, options


def keep(kept: results.Store, saved: dict[str, Any], outcome: dict[str, Any]) -> Record:
    record = {"key": {**saved, "versions": versions()}, **outcome}
    kept.add({**record, "processor": results.machine().get("processor", "")})
    return kept.records[-1]


@dataclass
class Planned:
    """The runs of a plan, for a pool: those that are published or in a folder are there."""

    plan: Plan
    store: results.Store
    published: Sequence[Record] = ()

    def records(self) -> dict[Run, Record]:
        return of_plan(self.plan, [*self.published, *self.store.records], versions())

    def missing(self) -> list[Run]:
        return self.plan.missing(scores(self.records()))

    def order(self, run: Run) -> tuple[str, Any, float, dict[str, Any]]:
        return order(run, self.plan.steps(run.section))

    def keep(self, run: Run, outcome: dict[str, Any]) -> Record:
        return keep(self.store, key(run, self.plan.steps(run.section)), outcome)


Document = dict[str, Any]


def document(plan: Plan, records: Mapping[Run, Record]) -> Document:
    def order(run: Run) -> tuple[Any, ...]:
        return list(SECTIONS).index(run.section), run.ranks, run.method, run.learning_rate, run.seed

    return {
        **results.circumstances(),
        "plan": {"sections": list(plan.sections), "seeds": plan.seeds, "quick": plan.quick},
        "runs": [records[run] for run in sorted(records, key=order)],
    }


def read(path: Path) -> tuple[Plan, Document]:
    """Return the plan and the document of a file; each of its runs says on what processor."""
    found: Document = results.read(path)
    for record in found["runs"]:
        record.setdefault("processor", found["machine"].get("processor", ""))
    plan = found["plan"]
    return Plan(tuple(plan["sections"]), plan["seeds"], plan["quick"]), found
