"""Ablations train, resume, and are what the page shows."""

import json
import sys
from dataclasses import replace
from functools import partial

import pytest

from benches.accuracy.ablations import __main__ as command
from benches.accuracy.ablations import tables
from benches.accuracy.ablations.methods import METHODS, TOPK, updates
from benches.accuracy.ablations.plan import Run, plan
from benches.accuracy.ablations.results import RESULTS, Asked, Results, key, means
from benches.accuracy.ablations.variant import Variant
from benches.accuracy.ablations.worker import trained
from benches.accuracy.pool import Pool
from benches.accuracy.run import run
from benches.accuracy.store import same
from benches.compare import blocks
from gradwire import Codec
from gradwire.sparsify import All
from tests.benches.accuracy import working
from tests.benches.accuracy.toy import Toy

train = partial(run, Toy(), learning_rate=0.01, evaluations=1)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_trains(name):
    outcome = trained(Run(name, 0.01, task="toy", steps=6), None, {"toy": Toy()})
    assert not outcome["diverged"]
    assert outcome["points"][-1]["loss"] < 4
    assert outcome["bytes_per_step"] > 0


def test_the_plan_names_every_method_and_no_other():
    asked = {each.method for runs in plan().values() for each in runs}
    assert asked == set(METHODS)


def test_every_run_of_the_plan_is_in_a_table():
    rows = {
        (row.method, row.task, row.ranks, row.steps)
        for all_ in tables.TABLES.values()
        for row in all_
    }
    runs = {
        (each.method, each.task, each.ranks, each.steps)
        for name, runs in plan().items()
        for each in runs
        if name != "warm-up"  # whose table is made of its plan
    }
    assert rows == runs


def test_the_plain_variant_trains_as_the_memory_does():
    # Every entry: selection among steps that are nearly equal would depend on rounding.
    codec = Codec(sparsify=All())
    losses = [
        train(method=each, ranks=2, steps=30).points[-1]["loss"]
        for each in (updates(codec), Variant(codec))
    ]
    assert losses[0] == pytest.approx(losses[1], abs=1e-3)


@pytest.mark.parametrize(
    "change",
    [{"sent": "steps"}, {"second": "all"}, {"beta1": 0.9}, {"share": 3}, {"clip": 0.1},
     {"clip_average": 0.001}, {"dense": ("3",)}],
    ids=str,
)  # fmt: skip
def test_each_option_of_a_variant_changes_the_run(change):
    plain = Variant(TOPK)
    changed = replace(plain, **change)
    losses = [
        train(method=each, ranks=2, steps=20, dense=each.dense).points[-1]["loss"]
        for each in (plain, changed)
    ]
    assert losses[0] != losses[1]
    assert json.dumps(plain.config()) != json.dumps(changed.config())


@pytest.fixture
def call(monkeypatch, tmp_path):
    """Call the command with a process that pretends to train."""
    monkeypatch.setattr(command, "Pool", lambda jobs, data, _: Pool(jobs, data, working.ablate))

    def command_line(*given: str) -> int:
        out = str(tmp_path / "runs.jsonl")
        monkeypatch.setattr(sys, "argv", ["ablations", "--jobs", "1", "--out", out, *given])
        return command.main()

    return command_line


def test_an_interrupted_command_goes_on_where_it_was(call, tmp_path, capsys):
    assert call("--only", "clipping") == 0
    path = tmp_path / "runs.jsonl"
    whole = path.read_bytes()
    assert len(whole.splitlines()) == len(plan()["clipping"])
    path.write_bytes(whole[:-20])
    capsys.readouterr()
    assert call("--only", "clipping,moments") == 0
    out = capsys.readouterr().out
    made, missing = len(plan()["clipping"]) - 1, 1 + len(plan()["moments"])
    assert f"{made} runs are there already; {missing} to make" in out
    assert (
        "text: updates, clip after, 2 ranks, rate 0.004, seed 0, 800 steps: loss 1.0040, acc" in out
    )
    assert "0 runs, about 0 min left" in out
    assert call("--tables") == 0
    assert "0 to make" in capsys.readouterr().out


def test_an_unknown_question_is_named(call, capsys):
    with pytest.raises(SystemExit):
        call("--only", "rank")
    assert "unknown question rank; choose from ranks, why" in capsys.readouterr().err


def test_a_method_that_has_changed_is_run_again(tmp_path):
    asked = [Run("updates", 0.004), Run("dense", 0.002)]
    kept = Results(tmp_path / "runs.jsonl")
    point = {"step": 800, "loss": 1.0, "accuracy": 0.5}
    outcome = {"points": [point], "bytes_per_step": 1.0, "diverged": False}
    for each in asked:
        Asked(asked, kept).keep(each, outcome)
    assert Asked(asked, Results(kept.path)).missing() == []
    text = kept.path.read_text().replace("adam_correction", "residual")
    kept.path.write_text(text)
    assert Asked(asked, Results(kept.path)).missing() == asked[:1]


def test_the_mean_is_over_seeds_and_leaves_out_rates_that_diverged():
    def record(loss, *, diverged=False):
        point = {"step": 800, "loss": loss, "accuracy": 0.5}
        return {"points": [] if diverged else [point], "bytes_per_step": 8.0, "diverged": diverged}

    made = {
        Run("dense", 0.002): record(1.0),
        Run("dense", 0.002, seed=1): record(2.0),
        Run("dense", 0.004): record(1.4),
        Run("dense", 0.008): record(0.0, diverged=True),
        Run("dense", 0.002, ranks=8): record(9.0),
    }
    found = means(made, "dense", task="text", ranks=2, steps=800)
    assert [(each.rate, each.seeds, each.loss) for each in found] == [
        (0.002, 2, 1.5),
        (0.004, 1, 1.4),
    ]
    # The best of one seed does not pass for the best of two.
    line = tables.table([tables.Row("d", "dense")], made)[-1]
    assert line == "| d | 0 | 0.002 | 1.500 | 50.0 | 2 | 0.004: 1.400 |"


def test_the_recorded_runs_are_valid():
    kept = Results(RESULTS)
    made = kept.made()
    assert len(made) == len(kept.records)
    assert all(
        same(record["key"], json.loads(json.dumps(key(each)))) for each, record in made.items()
    )


def test_an_option_that_is_newer_than_a_run_has_its_default(tmp_path):
    asked = [Run("topk, AdamW", 0.002)]
    kept = Results(tmp_path / "runs.jsonl")
    point = {"step": 800, "loss": 1.0, "accuracy": 0.5}
    Asked(asked, kept).keep(asked[0], {"points": [point], "bytes_per_step": 1.0, "diverged": False})
    record = json.loads(kept.path.read_text())
    for value, missing in (("bfloat16", asked), (None, [])):
        memory = record["key"]["config"]["codec"]["memory"]
        if value is None:
            del memory["dtype"]
        else:
            memory["dtype"] = value
        kept.path.write_text(json.dumps(record) + "\n")
        assert Asked(asked, Results(kept.path)).missing() == missing


@pytest.mark.parametrize("name", tables.TABLES)
def test_the_tables_of_the_page_are_those_of_the_recorded_runs(name):
    wanted = tables.tables(Results(RESULTS).made())[name]
    assert blocks.find(tables.PAGE.read_text("utf-8"), name).split("\n")[1:-1] == wanted
