"""What was measured, one JSON object a line: curves, cells and whole runs.

A record has everything that determines it in its ``key``, and when, where and with which versions
it was made. A line that a kill has cut off is passed over, and the next is begun on a new one.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

import gradwire
from benches.accuracy.plan import SECTIONS as TRAINED
from benches.accuracy.store import Lines, Record, same
from benches.compare.blocks import ROOT
from benches.harness.machine import machine, versions

from . import estimates, loops, methods, models
from .plan import LARGE, SECTIONS, Cell, Plan

RESULTS = ROOT / "benches" / "results" / "study.jsonl"
QUICK = ROOT / "benches" / "results" / "study-quick.jsonl"

EDITION = 2
"""Raise it when what is trained changes: curves and whole runs are then made again."""

TIMING = 3
"""Raise it when what is timed changes, or how: cells are then timed again."""

FORMER: Mapping[str, Any] = {"edition": 2, "settling": 30.0}
"""In the keys of short runs in which ``auto`` did not begin anew in each cell: still shown."""


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
    bucket: float | None
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


def cell_key(cell: Cell, plan: Plan) -> dict[str, Any]:
    """Return everything that determines the times of a cell, but where they were taken."""
    section = SECTIONS[cell.section]
    named = [name for name, _, _ in methods.contestants(cell.section)]
    codecs = {name: methods.CODECS[name].get_config() for name in named if name in methods.CODECS}
    return {
        "kind": "steps",
        "edition": TIMING,
        **asdict(cell),
        "contestants": named,
        "codecs": codecs,
        "family": section.family,
        "steps_a_turn": section.steps_a_turn,
        "turns": plan.turns,
        "settling": round(estimates.settling_limit(cell, plan), 1),
        "large": [models.LAYERS, models.WIDTH, models.ROWS] if cell.section == LARGE else None,
        "max_ratio": loops.MAX_RATIO,
    }


def former_key(cell: Cell, plan: Plan) -> dict[str, Any]:
    """Return the key of a cell that was timed before ``auto`` began anew in each."""
    return {**cell_key(cell, plan), **FORMER}


def is_former(record: Record) -> bool:
    """Tell whether a cell has such a key."""
    return bool(record["key"]["edition"] == FORMER["edition"])


def whole_key(whole: Whole) -> dict[str, Any]:
    """Return everything that determines a whole run."""
    return {"kind": "whole", "edition": EDITION, **asdict(whole)}


Circumstances = Mapping[str, Mapping[str, Any]]


@functools.cache
def circumstances() -> dict[str, Any]:
    """Return the machine and the versions."""
    where = {**machine(), "simd": gradwire.simd_level()}
    return {"machine": where, "versions": {**versions(), "torch": torch.__version__}}


TIMED = ("architecture", "processor", "cores", "simd")
"""What has to be equal of two machines whose times are compared."""

FIELDS = tuple(Cell.__dataclass_fields__)


class Store(Lines):
    """A file of records. Curves, cells and whole runs are found by what determines them.

    Parameters
    ----------
    path : Path
    here : dict, optional
        Machine and versions of which records may be: curves of these versions, and times of this
        machine as well. Without it, those of any: for what only shows them.
    """

    def __init__(self, path: Path, here: Circumstances | None = None) -> None:
        super().__init__(path)
        self._here = here

    def _of_here(self, record: Record, timed: bool) -> bool:
        if self._here is None:
            return True
        if record["versions"] != self._here["versions"]:
            return False
        both = record["machine"], self._here["machine"]
        return not timed or all(both[0].get(name) == both[1].get(name) for name in TIMED)

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
            if known and same(saved, run_key(run)) and self._of_here(record, timed=False):
                found[run] = record
        return found

    def cells(self, plan: Plan) -> dict[Cell, Record]:
        """Return what was timed of a plan, the last of each cell.

        What is only shown may be of the former edition, until the cell is timed again.
        """
        cells = plan.cells()
        keys = [cell_key(cell, plan) for cell in cells]
        if self._here is None:
            keys += [former_key(cell, plan) for cell in cells]
        saved = {
            Cell(*(record["key"][name] for name in FIELDS)): record
            for record in self.of("steps")
            if record["key"] in keys and self._of_here(record, timed=True)
        }
        return {cell: saved[cell] for cell in cells if cell in saved}

    def wholes(self) -> dict[Whole, Record]:
        """Return the whole runs."""
        found = {}
        for record in self.of("whole"):
            saved = record["key"]
            if saved["edition"] != EDITION or not self._of_here(record, timed=True):
                continue
            found[Whole(**{name: saved[name] for name in Whole.__dataclass_fields__})] = record
        return found

    def of(self, kind: str) -> Sequence[Record]:
        """Return the records of a kind."""
        return [each for each in self.records if each["key"].get("kind") == kind]
