"""What is measured of a packed model, and what training for few bits does."""

import copy
import math

import pytest
import torch
from torch import nn

from benches.accuracy.tasks.fashion import Fashion, FashionNet
from benches.quantize import times, training
from benches.quantize.packing import Bench
from benches.quantize.plan import (
    ABSMAX,
    ANY,
    BY_ERRORS,
    BY_LOSS_SEQUENTIAL,
    COMQ,
    COMQ_SEQUENTIAL,
    FLOAT,
    GPTQ,
    MAGR_GPTQ,
    PAPER,
    RANGE,
    SAWB_PLUS,
    STEPPED,
    Setting,
)
from benches.weights import models, nets
from benches.weights.plan import Model

pytestmark = pytest.mark.full  # trains


class Digits(models.Digits):
    """The digits with a small model."""

    def __init__(self):
        super().__init__()
        layers = [nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)]
        self.model = lambda seed: nn.Sequential(nn.Flatten(), *layers)


@pytest.fixture(scope="module")
def bench():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    return Bench(Digits(), models.train(Model("digits", "", 60, 0.002, 1), Digits()))


def test_every_method_is_packed_and_looked_at_by_layer(bench):
    before = copy.deepcopy(bench._net.state_dict())
    plain = bench(FLOAT)
    rows = {
        name: bench(Setting(name, 3, seed=0 if name == RANGE else 1))
        for name in (RANGE, GPTQ, PAPER, COMQ, MAGR_GPTQ, COMQ_SEQUENTIAL)
    }
    for row in rows.values():
        assert row["packed_bytes"] == rows[RANGE]["packed_bytes"] < plain["packed_bytes"] / 8
        assert math.isfinite(row["loss"])
        assert [bits for bits, _, _ in row["layers"].values()] == [3] * len(row["layers"])
    for name, (_, error, objective) in rows[COMQ]["layers"].items():
        assert 0 < error < objective
        assert all(objective <= rows[other]["layers"][name][2] for other in (RANGE, GPTQ))
    assert all(torch.equal(before[name], each) for name, each in bench._net.state_dict().items())


def test_a_budget_takes_the_bytes_of_the_bits_it_is_compared_with(bench):
    whole = {bits: bench(Setting(RANGE, bits))["packed_bytes"] for bits in (2, 3)}
    for method in (BY_ERRORS, BY_LOSS_SEQUENTIAL):
        three, half = (bench(Setting(method, bits, seed=1)) for bits in (3.0, 2.5))
        between = (whole[2] + whole[3]) / 2
        assert whole[2] < half["packed_bytes"] <= between + 1
        assert half["packed_bytes"] < three["packed_bytes"] <= whole[3]


class Images(Fashion):
    """Noise, in place of images of clothes."""

    def __init__(self):
        random = torch.Generator().manual_seed(0)
        images = torch.randn(256, 1, 28, 28, generator=random)
        self._train = self._test = (images, torch.arange(256) % 10)


@pytest.mark.parametrize(("method", "bits"), [(ABSMAX, 2), (SAWB_PLUS, 2), (ANY, 8)])
def test_images_are_trained_for_few_bits(monkeypatch, method, bits):
    monkeypatch.setattr(training, "IMAGES", (2, 0.001))
    net = FashionNet()
    before = copy.deepcopy(net.state_dict())
    row = Bench(Images(), net)(Setting(method, bits))
    assert math.isfinite(row["loss"])
    least = {ABSMAX: 2.1, SAWB_PLUS: 2.1, ANY: 8.5}[method]
    assert least < 8 * row["packed_bytes"] / row["entries"] < least + 0.4
    if method == SAWB_PLUS:
        assert len(row["clips"]) == sum(isinstance(each, nn.ReLU) for each in net.modules()) == 7
    if method == ANY:
        assert [each["packed_bytes"] for each in row["read"].values()] == sorted(
            (each["packed_bytes"] for each in row["read"].values()), reverse=True
        )
    assert all(torch.equal(before[name], each) for name, each in net.state_dict().items())


def test_an_lstm_step_by_step_is_the_same_but_for_rounding(monkeypatch):
    net = nets.Memory()
    stepped = training.Stepped(net, 8)
    text = torch.randint(96, (2, 9))
    with torch.no_grad():
        torch.testing.assert_close(stepped(text), net(text), atol=0.01, rtol=0)
        stepped.given = stepped.hidden = nn.Identity()
        torch.testing.assert_close(stepped(text), net(text))
    monkeypatch.setattr(training, "TEXT", (1, 0.001))
    task = models.task_of("lstm", None)
    row = Bench(task, net)(Setting(STEPPED, 4))
    assert 4.4 < 8 * row["packed_bytes"] / row["entries"] < 4.6


@pytest.mark.full
def test_all_times_and_peaks_are_taken_and_shown(monkeypatch):
    monkeypatch.setattr(times, "WIDTH", 64)
    monkeypatch.setattr(times, "ROUNDS", 2)
    found = times.measure(False, lambda text: None)
    text = times.table(found)
    for name in (times.PRODUCT, times.SWEEP, times.MAGR, GPTQ):
        assert f"| {name} " in text
    assert len(times.targets(found)) == 3 + len(found["memory"])
