"""Batches that run again, for one layer at a time, with the packed weights before it."""

import math
import sys
import types

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from gradwire.errors import NonFiniteError
from gradwire.torch.weights import Calibration
from tests.support import run_python
from tests.torch.weights.grams import assert_equal, assert_same, draw, gram_of, mlp, seeded, seen_of

# Batches that run again.


def noisy() -> nn.Sequential:
    return seeded(
        nn.Sequential(
            nn.Linear(6, 8), nn.Dropout(0.5), nn.BatchNorm1d(8), nn.Linear(8, 8), nn.Linear(8, 3)
        )
    )


def test_batches_run_again_in_eval_mode_and_nothing_changes():
    model, batches = noisy(), [draw(9, 6, seed=seed) for seed in range(3)]
    with torch.no_grad():
        model(batches[0])
    seen = seen_of(model, *batches, sequential=True)
    state, random = {k: v.clone() for k, v in model.state_dict().items()}, torch.get_rng_state()
    modes = [each.training for each in model.modules()]
    for _ in range(2):
        every = [seen[name] for name in seen]
    assert [each.training for each in model.modules()] == modes
    assert all(torch.equal(state[k], v) for k, v in model.state_dict().items())
    assert torch.equal(random, torch.get_rng_state())
    for found, expected in zip(every, seen_of(model.eval(), *batches).values(), strict=True):
        assert_equal(found, expected)


def test_random_numbers_are_the_same_with_weights_replaced_and_without():
    class Draws(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)

        def forward(self, x):
            return self.second(self.first(x) + torch.randn(x.shape))

    model = Draws()
    seen = seen_of(model, draw(9, 6), sequential=True)
    gram, cross = seen.pair("second.weight", {"first.weight": model.first.weight.detach().clone()})
    assert np.allclose(cross, gram.matrix, rtol=1e-5)


def test_autocast_is_as_it_was_when_batches_run_again():
    model, x = mlp(), draw(9, 6)
    with torch.autocast("cpu", torch.bfloat16):
        direct, again = seen_of(model, x), seen_of(model, x, sequential=True)
    for name in direct:
        assert_equal(again[name], direct[name])


def test_a_batch_that_failed_does_not_run_again():
    model, x = mlp(), draw(5, 6)
    with Calibration(model, sequential=True) as seen:
        model(x)
        with pytest.raises(NonFiniteError):
            model(x * math.nan)
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            model(x[:, :3])
    assert [seen[name].count for name in ("3.weight", "0.weight")] == [5, 5]


def test_a_part_of_a_model_cannot_run_again():
    model, x = mlp(), draw(5, 6)
    with (
        Calibration(model, sequential=True),
        pytest.raises(RuntimeError, match="call the model itself"),
    ):
        model[0](x)


def test_a_cache_that_a_model_writes_to_is_kept_as_it_was():
    class Remembers(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = mlp()

        def forward(self, x, cache):
            cache.before.append(x)
            return self.inner(torch.cat(cache.before))

    model, every = Remembers(), []
    for sequential in (False, True):
        cache = types.SimpleNamespace(before=[])
        with torch.no_grad(), Calibration(model, sequential=sequential) as seen:
            for seed in range(3):
                model(draw(5, 6, seed=seed), cache=cache)
        every.append(seen)
    for name in every[0]:
        assert every[0][name].count == 5 + 10 + 15
        assert_equal(every[1][name], every[0][name])


# Sequential.


class Attends(nn.Module):
    """Most kinds of layers, one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.conv = nn.Conv1d(8, 8, 3, padding=1)
        self.attend = nn.MultiheadAttention(8, 2, batch_first=True)
        self.gru = nn.GRU(8, 4, bidirectional=True, batch_first=True)
        self.data = nn.Linear(8, 8)
        self.head = nn.Linear(8, 20, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x):
        x = self.embed(x)
        x = x + self.conv(x.mT).mT
        x = x + self.attend(x, x.flip(1), x, need_weights=False)[0]
        x = x + self.gru(x)[0]
        return self.head(self.data(x) + x @ self.data.weight.data.T)


def test_sequential_sees_what_packed_weights_make():
    model = seeded(Attends()).eval()
    batches = [
        torch.randint(20, (3, 5), generator=torch.Generator().manual_seed(s)) for s in (0, 1)
    ]
    seen = seen_of(model, *batches, sequential=True)
    state = {name: each.clone() for name, each in model.state_dict().items()}
    rounded = {
        name: each.detach().mul(4).round().div(4)
        for name, each in model.named_parameters()
        if each.dim() > 1
    }
    replaced = {}
    every = ["embed.weight", *seen]
    for name in dict.fromkeys(every):
        if name in seen:
            really = seeded(Attends()).eval()
            with torch.no_grad():
                for each, value in replaced.items():
                    really.get_parameter(each).copy_(value)
            expected = seen_of(really, *batches)
            assert_same(seen.pair(name, replaced)[0], expected[name], 1e-6)
        replaced[name] = rounded[name]
    assert len(seen) == 1 + 2 + 4 + 1  # without the head, which is tied to the embedding
    assert all(torch.equal(state[name], each) for name, each in model.state_dict().items())


def test_sequential_stops_at_the_layer_and_survives_errors():
    model, x = mlp(), draw(5, 6)
    seen = seen_of(model, x, sequential=True)
    ran = []
    for name, each in model.named_children():
        each.register_forward_hook(lambda *_, name=name: ran.append(name))
    assert seen["2.weight"].count == 5
    assert ran == ["0", "1"]
    before = model[0].weight.detach().clone()
    with pytest.raises(NonFiniteError, match=r"input of 2.weight"):
        seen.pair("2.weight", {"0.weight": torch.full((8, 6), math.inf)})
    assert torch.equal(model[0].weight, before)
    assert seen.pair("2.weight", {})[0].count == 5


def test_products_of_inputs_before_and_after():
    model, x = mlp(), draw(5, 6)
    seen = seen_of(model, x, x + 1, sequential=True)
    other = torch.randn(8, 6)
    gram, cross = seen.pair("2.weight", {"0.weight": other})
    with torch.no_grad():
        every = torch.cat([x, x + 1])
        before, after = (
            F.linear(every, weight, model[0].bias).relu().double().numpy()
            for weight in (model[0].weight, other)
        )
    assert np.allclose(gram.matrix, after.T @ after, rtol=1e-5)
    assert np.allclose(cross, before.T @ after, rtol=1e-5)


def test_routes_that_replaced_weights_change():
    """An expert may be reached only then."""

    class Routed(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate = nn.Linear(4, 2, bias=False)
            self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

        def forward(self, x):
            which = self.gate(x).argmax(-1)
            for i in range(2):
                if (which == i).any():
                    self.experts[i](x[which == i])

    model, x = Routed(), draw(12, 4)
    with torch.no_grad():
        model.gate.weight.copy_(torch.tensor([[1.0, 0, 0, 0], [-1, 0, 0, 0]]))
    some, others = x[x[:, 0] > 0], x[x[:, 0] <= 0]
    seen = seen_of(model, some, others, x, sequential=True)
    turned = {"gate.weight": -model.gate.weight.detach()}
    assert_same(seen["experts.0.weight"], gram_of(some, some))
    gram, cross = seen.pair("experts.0.weight", turned)
    assert_same(gram, gram_of(others, others))
    assert cross is None
    assert seen.pair("experts.1.weight", {"gate.weight": torch.zeros(2, 4)}) == (None, None)


# Memory.

PEAK = """
import re
import torch
from torch import nn
from gradwire.torch.weights import Calibration

torch.set_num_threads(1)
model = nn.Sequential(nn.Conv2d(16, 2, 5, padding=2))
x = torch.randn(16, 16, 64, 64)  # 4.2 MB; its patches are 105 MB

def resident(field):
    with open("/proc/self/status") as file:
        return int(re.search(field + r":\\s+(\\d+) kB", file.read())[1]) * 1024

def peak(call):
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    before = resident("VmRSS")
    call()
    return resident("VmHWM") - before

with torch.no_grad():
    model(x)
    with Calibration(model):
        model(x[:1])
    plain = peak(lambda: model(x))
    with Calibration(model) as seen:
        model(x[:1])
        print(peak(lambda: model(x)) - plain)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the peak can be set back under Linux alone")
def test_patches_are_made_in_blocks():
    """A padded copy of the input, some blocks of 6.6 MB, and two more matrices of 1.3 MB."""
    found = run_python(PEAK, MALLOC_MMAP_THRESHOLD_="65536")
    assert int(found) < 1.2 * 4.2e6 + 3 * 6.6e6 + 2 * 1.3e6
