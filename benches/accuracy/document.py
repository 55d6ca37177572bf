"""All runs of a plan as one JSON document, from which tables and figures are made."""

import datetime
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benches.compare import blocks
from benches.harness.machine import machine

from . import store, summary
from .plan import SECTIONS, Plan, Run
from .store import Record

Document = dict[str, Any]

PUBLISHED = blocks.ROOT / "benches" / "results" / "2026-11-24-accuracy.json"
"""The document of docs/accuracy.md, from which later runs go on."""


def document(plan: Plan, records: Mapping[Run, Record]) -> Document:
    """Return the document of these runs."""
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "plan": {"sections": list(plan.sections), "seeds": plan.seeds, "quick": plan.quick},
        "machine": machine(),
        "versions": dict(store.versions()),
        "runs": [records[run] for run in sorted(records, key=_order)],
    }


def _order(run: Run) -> tuple[Any, ...]:
    return list(SECTIONS).index(run.section), run.ranks, run.method, run.learning_rate, run.seed


def read(path: Path) -> Document:
    """Return a document that was written before; each of its runs says on what processor."""
    found: Document = json.loads(path.read_text("utf-8"))
    for record in found["runs"]:
        record.setdefault("processor", store.processor(found["machine"]))
    return found


def write(found: Document, path: Path) -> None:
    """Write a document, a run on each line."""
    head = json.dumps({name: each for name, each in found.items() if name != "runs"}, indent=1)
    runs = ",\n".join(f"  {json.dumps(each)}" for each in found["runs"])
    text = f'{head.rstrip().removesuffix("}").rstrip()},\n "runs": [\n{runs}\n ]\n}}\n'
    path.write_text(text, encoding="utf-8")


def summaries(found: Document) -> list[summary.Summary]:
    """Return the summaries of a document."""
    saved = found["plan"]
    plan = Plan(tuple(saved["sections"]), saved["seeds"], saved["quick"])
    records = {store.run_of(each["key"]): each for each in found["runs"]}
    return summary.summarize(plan, records)
