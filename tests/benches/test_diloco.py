"""The figures of training across sites: runs are kept, and the page has what they show."""

import json

import pytest

from benches.compare import blocks
from benches.diloco import __main__ as command
from benches.diloco import results, tables
from benches.diloco.results import DENSE, RESULTS, Results, Run
from benches.diloco.settings import SETTINGS, TRIED
from benches.diloco.training import train
from tests.benches.accuracy.toy import Plain, Toy


@pytest.mark.parametrize("name", TRIED)
def test_every_setting_trains(name):
    found = train(Plain(), SETTINGS[name], seed=0, steps=40)
    assert not found.diverged
    assert found.points[-1]["step"] == 40
    assert found.points[-1]["loss"] < found.points[0]["loss"]
    assert 0 < found.bytes_per_step < found.largest_message


def test_fragments_make_the_largest_message_smaller_and_send_no_less():
    whole, parts = (
        train(Plain(), SETTINGS[name], seed=0, steps=40)
        for name in (tables.CHOSEN, "2 fragments, delay 0, mixing 0.0")
    )
    assert parts.largest_message < whole.largest_message
    assert parts.bytes_per_step == pytest.approx(whole.bytes_per_step, rel=0.2)


def test_a_model_with_buffers_is_refused():
    with pytest.raises(ValueError, match="a model with buffers"):
        train(Toy(), SETTINGS[tables.CHOSEN], seed=0, steps=1)


@pytest.fixture
def call(monkeypatch, tmp_path):
    """Call the command with a task that takes milliseconds."""
    monkeypatch.setattr(command, "Text", Plain)
    path = tmp_path / "runs.jsonl"

    def command_line(*given):
        command.main(["--out", str(path), "--steps", "6", *given])
        return path

    return command_line


def test_an_interrupted_command_goes_on_where_it_was(call, capsys):
    path = call("--only", DENSE, "--only", tables.CHOSEN, "--seeds", "0", "1")
    assert len(Results(path).own()) == 4
    whole = path.read_text()
    path.write_text(whole[:-20])
    capsys.readouterr()
    call("--only", DENSE, "--only", tables.CHOSEN, "--seeds", "0", "1")
    out = capsys.readouterr().out
    assert f"{tables.CHOSEN}, 2 ranks, seed 1: loss" in out
    assert "0 runs left" in out
    assert "seed 0: loss" not in out
    again = [json.loads(line) for line in whole.splitlines()]
    for one, other in zip(again, Results(path).records, strict=True):
        assert one["points"] == other["points"]


def test_a_setting_that_has_changed_is_run_again(call, monkeypatch):
    path = call("--only", tables.CHOSEN)
    assert len(Results(path).own()) == 1
    monkeypatch.setattr(results, "EDITION", results.EDITION + 1)
    assert Results(path).own() == {}


def test_every_recorded_run_is_one_of_the_settings():
    kept = Results(RESULTS)
    assert len(kept.own()) == len(kept.records)
    assert {run for run in tables.runs() if run.steps == results.STEPS} <= kept.made().keys()


def test_dense_training_is_that_of_the_page_on_accuracy():
    text = (blocks.ROOT / "docs" / "accuracy.md").read_text("utf-8")
    assert results.ACCURACY.name in text
    ends = [each["points"][-1]["loss"] for each in results.dense().values()]
    mean = sum(ends) / len(ends)
    assert f"| dense AdamW | 2 | {results.RATE} | 1718.7 | 1 | {mean:.4f} |" in text


def test_the_tables_of_the_page_are_those_of_the_recorded_runs():
    for name, wanted in tables.tables(Results(RESULTS).made()).items():
        assert blocks.find(tables.PAGE.read_text("utf-8"), name).split("\n")[1:-1] == wanted


@pytest.mark.parametrize("seeds", [tables.SEEDS, tables.JUDGING])
def test_the_aim_is_reached(seeds):
    made = Results(RESULTS).made()
    ratios = []
    for seed in seeds:
        dense, chosen = made[Run(DENSE, seed)], made[Run(tables.CHOSEN, seed)]
        assert dense["bytes_per_step"] >= 100 * chosen["bytes_per_step"]
        ratios.append(chosen["points"][-1]["loss"] / dense["points"][-1]["loss"])
    assert sum(ratios) / len(ratios) <= 1.01
