"""How a model is packed and read by every setting, and what the command makes of that."""

import copy
import json

import pytest
import torch
from torch import nn

pytest.importorskip("safetensors", reason="the layer weights has safetensors")

from benches.harness import results
from benches.harness.tasks import Digits
from benches.weights import __main__ as command
from benches.weights import losses, models, show
from benches.weights.losses import (
    BUDGET,
    FLOAT,
    METHODS,
    PLAIN,
    RANGE,
    SEQUENTIAL,
    USUAL,
    Bench,
    Calibrated,
    Nearest,
)
from benches.weights.models import DIGITS, Model

pytestmark = pytest.mark.full  # trains

SHORT = Model("digits", "Digits", 60, 0.002, 1)


def small() -> nn.Module:
    layers = [nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)]
    return nn.Sequential(nn.Flatten(), *layers)


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    """A small model, trained for a moment, kept and read again."""
    torch.set_num_threads(1)
    task, folder = Digits(net=small), tmp_path_factory.mktemp("weights")
    first = models.trained(SHORT, task, folder)
    read = models.trained(SHORT, task, folder)
    assert all(map(torch.equal, first.state_dict().values(), read.state_dict().values()))
    assert models.place(SHORT, folder).exists()
    assert models.place(SHORT, folder) != models.place(DIGITS, folder)
    return Bench(task, read)


def test_fewer_bits_are_fewer_bytes_and_the_model_stays(bench):
    before = copy.deepcopy(bench._net.state_dict())
    plain = bench(FLOAT)
    assert plain == bench(PLAIN)
    assert plain["packed_bytes"] == 4 * plain["entries"]
    found = {bits: bench(Nearest(bits, "range")) for bits in (8, 2)}
    for bits, row in found.items():
        assert 0 <= 8 * row["packed_bytes"] / row["entries"] - bits - 32 / 64 < 0.2
        assert row["bytes"] - row["packed_bytes"] == plain["bytes"] - plain["packed_bytes"]
    assert abs(found[8]["loss"] - plain["loss"]) < 3e-3 < abs(found[2]["loss"] - plain["loss"])
    for method in METHODS:
        bench(Calibrated(method, 3, seed=1))
    assert all(torch.equal(before[name], each) for name, each in bench._net.state_dict().items())


def test_calibration_takes_no_more_bytes_and_a_budget_those_of_its_mean(bench):
    whole = {bits: bench(Calibrated(RANGE, bits)) for bits in (2, 3)}
    better = bench(Calibrated(SEQUENTIAL, 2, seed=1))
    assert better["packed_bytes"] == whole[2]["packed_bytes"]
    assert better["loss"] < whole[2]["loss"]
    three, half = (bench(Calibrated(BUDGET, bits, seed=1))["packed_bytes"] for bits in (3.0, 2.5))
    low, high = whole[2]["packed_bytes"], whole[3]["packed_bytes"]
    assert low < half <= (low + high) / 2 + 1
    assert half < three <= high


def row(order):
    """A loss that doubles its distance with every bit less."""
    model, setting, _ = order
    more = 0.0 if setting in (FLOAT, PLAIN) else 0.16 / 2**setting.bits
    sizes = {"packed_bytes": int(100 * setting.bits), "bytes": int(100 * setting.bits) + 800}
    about = {"model": model.name, "title": model.title, "setting": vars(setting)}
    return {
        **about,
        "loss": 1.5 + more,
        "accuracy": 0.6,
        "parameters": 1000,
        "entries": 800,
        **sizes,
    }


def document(settings, change=lambda each: each):
    made = [change(row((models.TEXT, each, None))) for each in settings]
    return json.loads(json.dumps({**results.circumstances(), "rows": made, "kernel": {"rows": []}}))


def test_a_loss_that_is_too_large_fails():
    settings = losses.settings("weights", quick=False)
    assert all(each.endswith(", met).") for each in show.targets(document(settings)))

    def worse(each):
        return each | {"loss": each["loss"] + 0.1 * (each["setting"] == vars(USUAL[1]))}

    said = list(show.targets(document(settings, worse)))
    what = 'text, 4 bits, `"squares"`, block 64, compared with float32: loss +0.1100'
    assert f"{what} (target: at most 0.012, **missed**)." in said


def test_a_quick_run_writes_data_tables_and_a_picture(monkeypatch, tmp_path, capsys):
    found = document(losses.settings("weights", quick=True))
    monkeypatch.setattr(command, "packed", lambda part, chosen: found["rows"])
    monkeypatch.setattr(command.kernel, "measure", lambda quick, tick: {"rows": []})
    assert command.main(["--quick", "--only", "weights", "--out", str(tmp_path / "out")]) == 0
    assert "| 4 bits" in capsys.readouterr().out
    names = {file.name for file in (tmp_path / "out").iterdir()}
    assert names == {"weights.json", "weights.md", "weights.svg"}
