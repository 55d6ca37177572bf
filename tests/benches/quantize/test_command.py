"""The command as one calls it, and what it shows."""

import json

import pytest

from benches.harness import results
from benches.quantize import __main__ as command
from benches.quantize import document, show, targets
from benches.quantize.plan import (
    ANY,
    BITS,
    BLOCK,
    BY_LOSS,
    BY_LOSS_SEQUENTIAL,
    COMQ,
    FLOAT,
    GPTQ,
    METHODS,
    MODELS,
    PAPER,
    RANGE,
    RECOMMENDED,
    ROW,
    SAWB_PLUS,
    SEEDS,
    SQUARES,
    ZERO,
    Plan,
    Setting,
)
from benches.quantize.times import MAGR, PRODUCT, SWEEP
from benches.weights import making, models
from benches.weights.plan import TEXT
from tests.benches.weights import working

pytestmark = pytest.mark.full  # trains

PARTS = dict.fromkeys(METHODS, 0.2) | {ZERO: 1.5, RANGE: 1.0, SQUARES: 1.0, COMQ: 0.15}
PARTS |= {BY_LOSS: 0.14, RECOMMENDED: 0.1, BY_LOSS_SEQUENTIAL: 0.09}
"""Of the loss that rounding adds."""
TIMES = {
    "times": [
        {"name": name, "seconds": 1.0, "copies": copies}
        for name, copies in ((PRODUCT, 1), (GPTQ, 1.5), (SWEEP, 1.9), (MAGR, 150))
    ],
    "memory": [{"name": "COMQ", "layers": 2.5}],
}


def row(setting):
    """A loss that doubles its distance with every bit less, and is less by each method."""
    known = setting.method in METHODS
    part = PARTS[setting.method] if known else 0.0
    found = {
        "loss": 1.5 + part * 0.16 / 2**setting.bits + 1e-5 * setting.seed * known,
        "accuracy": 0.9,
        "parameters": 1000,
        "entries": 800,
        "packed_bytes": int(100 * setting.bits),
        "bytes": int(100 * setting.bits) + 800,
    }
    if known:
        found["layers"] = {"a": [setting.bits, 0.01 * part, 0.01 * part]}
    if setting.method == ANY:
        found["read"] = {str(bits): {"loss": 1.5, "accuracy": 0.9} for bits in (8, 4, 2)}
    return found


@pytest.fixture
def call(monkeypatch, tmp_path):
    """Call the command with processes that pretend to work, and times that are known."""

    def run(*given: str) -> int:
        return command.main(["--out", str(tmp_path / "out"), "--jobs", "1", *given])

    monkeypatch.setattr(making, "Pool", type("Pool", (working.Pool,), {"row": staticmethod(row)}))
    monkeypatch.setattr(command.times, "measure", lambda quick, tick: TIMES)
    monkeypatch.setattr(command.models, "available", lambda data: MODELS)
    monkeypatch.setattr(models, "FOLDER", tmp_path / "kept")
    return run


def test_a_whole_run_meets_targets_and_goes_on_where_it_was(call, tmp_path, capsys):
    assert call() == 0
    out = capsys.readouterr().out
    assert "**missed**" not in out
    assert out.count(", met).") > 60
    runs = list(Plan(MODELS).runs())
    records = results.Store(tmp_path / "out" / "runs.jsonl").records
    assert len(records) == len(runs) == len(set(runs))
    call()
    assert "runs; about" not in capsys.readouterr().out
    drawn = (tmp_path / "out" / "quantize.svg").read_text("utf-8")
    assert all(f">{method}<" in drawn for method in show.LOOKS)


def test_a_quick_run_packs_the_first_model_by_every_method(call, tmp_path, capsys):
    assert call("--quick") == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("text   float32 1.500   4 bits: nearest +0.010, packed +0.001")
    records = results.Store(tmp_path / "out" / "runs.jsonl").records
    settings = [Setting(**each["key"]["setting"]) for each in records if each["key"]["setting"]]
    assert {each.method for each in settings} == {"", *METHODS}
    assert {(each.block, each.seed) for each in settings} <= {(BLOCK, 0), (BLOCK, SEEDS[0])}


def found(change=lambda setting, each: each):
    """A document of the plan, with some rows changed."""
    runs = {
        run: {"key": {"setting": vars(run.setting)}, **change(run.setting, row(run.setting))}
        for run in Plan(MODELS).runs()
        if run.setting
    }
    rows = [document.row(run, record) for run, record in runs.items()]
    made = {"rows": rows, "layers": document.layers(runs), "times": TIMES}
    return json.loads(json.dumps({**results.circumstances(), **made}))


def failing(change):
    return [each for each in targets.targets(found(change)) if "**missed**" in each]


def worse(method, bits, more, name="loss"):
    def change(setting, each):
        right = setting.method == method and setting.bits == bits and setting.block == BLOCK
        return each | {name: each[name] + more} if right else each

    return change


def test_a_loss_that_is_too_large_fails():
    assert failing(lambda _, each: each) == []
    said = failing(worse(RECOMMENDED, 4, 0.004))
    assert [each.partition(":")[0] for each in said] == [
        f"{model}, {RECOMMENDED}, 4 bits, compared with float32" for model in ("text", "wide")
    ]
    assert any("times that of round-to-nearest" in each for each in failing(worse(COMQ, 3, 0.01)))
    assert any("lower of GPTQ and MagR + GPTQ" in each for each in failing(worse(COMQ, 2, 0.003)))
    assert any("than with COMQ as in the paper" in each for each in failing(worse(COMQ, 2, 0.003)))
    assert any("2.5-bit size" in each for each in failing(worse(BY_LOSS, 2.5, 0.01)))
    (said,) = failing(worse(SAWB_PLUS, 2, -0.02, "accuracy"))
    assert "2-bit weights and activations, compared with float32 trained further" in said
    assert said.endswith(": accuracy -2.00 points (target: at most 1 lower, **missed**).")


def test_a_layer_that_is_worse_by_comq_is_told():
    def change(setting, each):
        if setting.method == COMQ and setting.bits == 3 and setting.block == ROW:
            each["layers"]["a"][2] *= 1.5
        return each

    for said, rival in zip(failing(change), (GPTQ, PAPER), strict=True):
        assert said.startswith(f"COMQ compared with {rival}: a larger objective on 1 of ")
        assert "layers, by a factor of at most 1.125" in said


def test_the_tables_have_every_method_and_the_spread_of_seeds():
    made = found()
    table = show.every(made)
    assert all(f"| {method} " in table for method in METHODS)
    assert f"{row(Setting(COMQ, 3, seed=2))['loss']:.4f} ± 0.0000" in table
    assert "| row " in table
    first = show.choice(made)
    assert "| 2.5 bits, Loss-based budget, COMQ, sequential " in first
    assert "1.5000" in first
    assert "any precision, 8 bits, read at 2" in show.training(made)


def test_every_model_has_every_method_at_every_number_of_bits():
    every = {(run.model, run.setting) for run in Plan(MODELS).runs()}
    for bits in BITS:
        for name, method in METHODS.items():
            if not method.allot and (bits < 8 or not method.sequential):
                seed = SEEDS[0] if method.rounding else 0
                assert (TEXT, Setting(name, bits, seed=seed)) in every
    assert (TEXT, FLOAT) in every
