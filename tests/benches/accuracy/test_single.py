"""One run alone, for whoever does not want a whole plan."""

import pytest

from benches.accuracy import single
from benches.accuracy.plan import Plan, Run
from benches.accuracy.store import Planned
from benches.harness.results import Store

CALL = ("code", "adam(0.01)", "--ranks", "8", "--rate", "0.001", "--seed", "1")


@pytest.fixture
def made(monkeypatch):
    """What was trained: training is pretended."""
    made = []

    def train(task, method, rate, **options):
        made.append((rate, options))
        points = [
            {"step": options["steps"] * part // 2, "loss": 3.0 - part, "accuracy": 0.5}
            for part in (1, 2)
        ]
        return {"points": points, "bytes_per_step": 2e6, "diverged": False, "seconds": 1.4}

    monkeypatch.setattr(single, "make_task", lambda name, data: None)
    monkeypatch.setattr(single, "train", train)
    return made


def test_a_run_is_made_once_and_the_plan_finds_it(made, tmp_path, capsys):
    for _ in range(2):
        assert single.main([*CALL, "--out", str(tmp_path)]) == 0
    ((rate, options),) = made
    assert rate == 0.001
    assert options == {"ranks": 8, "seed": 1, "steps": 800, "evaluations": 8}
    work = Planned(Plan(("code",)), Store(tmp_path / "runs.jsonl"))
    assert list(work.records()) == [Run("code", "adam(0.01)", 8, 0.001, 1)]
    table = " ".join(capsys.readouterr().out.split())
    assert "| step 400 | step 800 |" in table
    assert "| adam(0.01) | 8 | 0.001 | 1 | 2000.0 | 1 | 2.000 | 1.000 |" in table


def test_a_method_that_the_section_lacks_is_named(made, capsys):
    with pytest.raises(SystemExit):
        single.main(["code", "dense SGD", "--ranks", "4", "--rate", "1"])
    said = capsys.readouterr().err
    assert "code has no 'dense SGD' with 4 ranks; choose from 'dense AdamW', 2 ranks;" in said
    assert made == []
