"""What was measured, one JSON object a line: curves, cells and whole runs.

A record has everything that determines it in its ``key``, and when, where and with which versions
it was made. A line that a kill has cut off is passed over, and the next is begun on a new one.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

import torch

from benches.accuracy.plan import SECTIONS as TRAINED
from benches.accuracy.store import Lines, Record, same
from benches.compare.blocks import ROOT
from gradwire.cli.training.machine import machine, versions

from . import loops, methods, models
from .plan import LARGE, SECTIONS, Cell, Plan

RESULTS = ROOT / "benches" / "results" / "study.jsonl"
QUICK = ROOT / "benches" / "results" / "study-quick.jsonl"

EDITION = 1
"""Raise it when what is timed or trained changes: all is then made again."""


@dataclass(frozen=True)
class Run:
    """One training run with simulated ranks."""

    section: str
    method: str
    ranks: int
    learning_rate: float
    seed: int
    steps: int


@dataclass(frozen=True)
class Whole:
    """One training run with real ranks over a shaped link."""

    section: str
    method: str
    ranks: int
    link: int
    learning_rate: float
    seed: int
    steps: int


def run_key(run: Run) -> dict[str, Any]:
    """Return everything that determines a run."""
    curve = methods.compared(run.section)[run.method].curve
    assert curve is not None
    edition = TRAINED[run.section].edition
    return {"kind": "curve", "edition": [EDITION, edition], **asdict(run),
            "config": curve.config()}  # fmt: skip


def cell_key(cell: Cell, group: int, plan: Plan) -> dict[str, Any]:
    """Return everything that determines the times of a group of contestants in a cell."""
    section = SECTIONS[cell.section]
    named = [name for name, _, _ in methods.groups(cell.section)[group]]
    codecs = {name: methods.CODECS[name].get_config() for name in named if name in methods.CODECS}
    return {
        "kind": "steps",
        "edition": EDITION,
        **asdict(cell),
        "group": group,
        "contestants": named,
        "codecs": codecs,
        "family": section.family,
        "steps_a_turn": section.steps_a_turn,
        "turns": plan.turns,
        "large": [models.LAYERS, models.WIDTH, models.ROWS] if cell.section == LARGE else None,
        "max_ratio": loops.MAX_RATIO,
    }


def whole_key(whole: Whole) -> dict[str, Any]:
    """Return everything that determines a whole run."""
    return {"kind": "whole", "edition": EDITION, **asdict(whole)}


@functools.cache
def circumstances() -> dict[str, Any]:
    """Return the machine and the versions."""
    return {"machine": machine(), "versions": {**versions(), "torch": torch.__version__}}


FIELDS = tuple(Cell.__dataclass_fields__)


def timed_together(plan: Plan) -> list[tuple[Cell, int]]:
    """Return the cells with the numbers of their groups, the same models one after the other."""
    return [
        (Cell(section, ranks, link), group)
        for ranks in plan.ranks
        for section in plan.sections
        for group in range(len(methods.groups(section)))
        for link in plan.links
    ]


class Store(Lines):
    """A file of records. Curves, cells and whole runs are found by what determines them."""

    def keep(self, key: Mapping[str, Any], found: Mapping[str, Any]) -> Record:
        """Append a record, complete with its date and where it was made."""
        date = datetime.now(UTC).isoformat(timespec="seconds")
        record = {"key": dict(key), "date": date, **circumstances(), **found}
        self.add(record)
        return record

    def curves(self) -> dict[Run, Record]:
        """Return the runs whose methods are still the same."""
        found = {}
        for record in self.of("curve"):
            saved = record["key"]
            run = Run(**{name: saved[name] for name in Run.__dataclass_fields__})
            known = run.section in SECTIONS and run.method in methods.compared(run.section)
            if known and same(saved, run_key(run)):
                found[run] = record
        return found

    def groups(self, plan: Plan) -> dict[tuple[Cell, int], Record]:
        """Return what was timed of a plan, the last of each."""
        keys = {each: cell_key(*each, plan) for each in timed_together(plan)}
        saved = {
            (Cell(*(record["key"][name] for name in FIELDS)), record["key"]["group"]): record
            for record in self.of("steps")
            if record["key"] in keys.values()
        }
        return {each: saved[each] for each in keys if each in saved}

    def cells(self, plan: Plan) -> dict[Cell, Record]:
        """Return the cells of a plan of which all is there, with the rows of all contestants."""
        groups = self.groups(plan)
        found = {}
        for cell in plan.cells():
            mine = [groups.get((cell, at)) for at in range(len(methods.groups(cell.section)))]
            whole = [each for each in mine if each is not None]
            if len(whole) == len(mine):
                found[cell] = {**whole[0], "rows": [row for each in whole for row in each["rows"]]}
        return found

    def wholes(self) -> dict[Whole, Record]:
        """Return the whole runs."""
        found = {}
        for record in self.of("whole"):
            saved = record["key"]
            whole = Whole(**{name: saved[name] for name in Whole.__dataclass_fields__})
            if saved == whole_key(whole):
                found[whole] = record
        return found

    def of(self, kind: str) -> Sequence[Record]:
        """Return the records of a kind."""
        return [each for each in self.records if each["key"].get("kind") == kind]
