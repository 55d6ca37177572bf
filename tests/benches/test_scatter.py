"""Losses by exchange: each row with what it was made with, and none lost."""

import json

import pytest

pytest.importorskip("torch", reason="the bench needs the extra [torch]")

from benches.accuracy.store import Lines
from benches.circumstances import same_versions
from benches.scatter import accuracy


@pytest.fixture
def made(monkeypatch):
    """Runs that take no time, and which were made."""
    found = []

    def train(key, task):
        found.append(key)
        return {"run": list(key), "loss": 1.0}

    monkeypatch.setattr(accuracy, "train", train)
    monkeypatch.setattr(accuracy, "make_task", lambda *given: object())
    return found


def test_runs_go_on_and_keep_what_they_were_made_with(made, tmp_path):
    path = tmp_path / "runs.jsonl"
    every = list(accuracy.plan())
    accuracy.measure(path)
    assert made == every
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert all({"date", "machine", "versions"} <= row.keys() for row in rows)

    # Others had other versions, and the last was interrupted in the middle of a line.
    rows[0] |= {"versions": {"torch": "another one"}, "loss": 2.0}
    lines = [json.dumps(row) for row in rows]
    path.write_text("\n".join(lines)[:-30])
    before = path.read_text()
    made.clear()
    assert "torch another one" in "\n".join(accuracy.show(accuracy.current(Lines(path)), "x"))
    accuracy.measure(path)
    assert made == [every[0], every[-1]]
    assert path.read_text().startswith(before)
    kept = accuracy.current(Lines(path))
    assert len(kept) == len(every)
    assert all(same_versions(row) and row["loss"] == 1.0 for row in kept)
    made.clear()
    accuracy.measure(path)
    assert made == []
