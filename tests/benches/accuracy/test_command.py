"""The command as one calls it."""

import sys

import pytest

from benches.accuracy import __main__ as command
from benches.accuracy import pool
from tests.benches.accuracy import working

pytestmark = pytest.mark.full  # trains


@pytest.fixture
def call(monkeypatch, tmp_path):
    """Call the command with processes that pretend to train."""
    monkeypatch.setattr(pool, "train", working.pretend)

    def run(*given: str) -> int:
        monkeypatch.setattr(sys, "argv", ["accuracy", "--out", str(tmp_path / "out"), *given])
        return command.main()

    return run


def test_a_run_writes_data_tables_and_a_figure(call, tmp_path, capsys):
    assert call("--only", "clicks", "--quick", "--jobs", "1") == 0
    names = {file.name for file in (tmp_path / "out").iterdir()}
    assert names == {"runs.jsonl", "accuracy.json", "accuracy.md", "accuracy.svg"}
    out = capsys.readouterr().out
    assert "0 runs are there already" in out
    assert "clicks: dense AdamW, 2 ranks, rate 0.008, seed 0: 79.00" in out
    assert "at least 0 left" in out
    assert "`adam(0.01)`, 2 ranks:" in out


def test_missing_data_is_told_before_anything_runs(call, tmp_path, capsys):
    assert call("--only", "text", "fashion", "--quick", "--data", str(tmp_path)) == 1
    captured = capsys.readouterr()
    assert "has no train-images-idx3-ubyte" in captured.err
    assert "already" not in captured.out
