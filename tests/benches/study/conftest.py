"""A small study that nobody has measured, complete."""

import pytest

from benches.study import curves, store
from benches.study.page import Findings
from benches.study.store import Store
from tests.benches.study import made
from tests.benches.study.made import PLAN, keep_cells, outcome


@pytest.fixture
def accuracy(monkeypatch):
    """Curves of `make accuracy` that no other run of it changes."""
    monkeypatch.setattr(curves, "_accuracy", made.accuracy)


@pytest.fixture
def findings(tmp_path, accuracy) -> Findings:
    """All of the small study."""
    kept = Store(tmp_path / "study.jsonl")
    keep_cells(kept)
    while missing := curves.wanted(PLAN, curves.all_curves(kept, PLAN)):
        for run in missing:
            kept.keep(store.run_key(run), outcome(run))
    return Findings.of(PLAN, Store(kept.path))
