"""Batches that run again: matrices that memory does not hold, and packed weights before a layer."""

import math
import sys
import types

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


@pytest.mark.parametrize("memory", [0, 8 * 7 * 6, 2000, 10**9])
def test_a_limit_on_memory_changes_nothing(memory):
    batches = [draw(9, 6, seed=seed) for seed in range(3)]
    torch.manual_seed(3)
    direct = seen_of(model := noisy(), *batches)
    torch.manual_seed(3)
    limited = seen_of(model := noisy(), *batches, memory=memory)
    state, random = {k: v.clone() for k, v in model.state_dict().items()}, torch.get_rng_state()
    for _ in range(2):
        assert list(limited) == list(direct)
        for name in limited:
            held = sum(each.nbytes for each in limited._layers.values() if each.sums)
            assert held <= max(memory, 8 * 9 * 8)
            assert_equal(limited[name], direct[name])
    assert all(torch.equal(state[k], v) for k, v in model.state_dict().items())
    assert torch.equal(random, torch.get_rng_state())


def test_forwards_that_a_limit_costs():
    calls = 0

    def count(*_):
        nonlocal calls
        calls += 1

    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(6)))
    seen = seen_of(model, draw(9, 8), memory=2 * 8 * 9 * 8)
    for each in model:
        each.register_forward_hook(count)
    dict(seen)
    # Layers 0 and 1 are held; 2 and 3 stop before the fourth, 4 and 5 before the last.
    assert calls == 3 + 5


def test_autocast_is_as_it_was_when_batches_run_again():
    model, x = mlp(), draw(9, 6)
    with torch.autocast("cpu", torch.bfloat16):
        direct, limited = seen_of(model, x), seen_of(model, x, memory=0)
    for name in direct:
        assert_equal(limited[name], direct[name])


def test_a_batch_that_failed_does_not_run_again():
    model, x = mlp(), draw(5, 6)
    with Calibration(model, memory=0) as seen:
        model(x)
        with pytest.raises(NonFiniteError):
            model(x * math.nan)
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            model(x[:, :3])
    assert [seen[name].count for name in ("3.weight", "0.weight")] == [5, 5]


def test_a_part_of_a_model_cannot_run_again():
    model, x = mlp(), draw(5, 6)
    with Calibration(model, memory=0), pytest.raises(RuntimeError, match="call the model itself"):
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
    for memory in (None, 0):
        cache = types.SimpleNamespace(before=[])
        with torch.no_grad(), Calibration(model, memory=memory) as seen:
            for seed in range(3):
                model(draw(5, 6, seed=seed), cache=cache)
        every.append(seen)
    for name in every[0]:
        assert every[0][name].count == 5 + 10 + 15
        assert_equal(every[1][name], every[0][name])


def test_arguments_that_cannot_be_kept():
    model = mlp()
    model.forward = lambda x: next(x)
    with Calibration(model, memory=0), pytest.raises(TypeError, match="cannot be kept"):
        model(each for each in "x")


def test_batches_that_changed_are_noticed():
    class Some(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.rows = mlp(), 5

        def forward(self, x):
            return self.inner(x[: self.rows])

    seen = seen_of(model := Some(), draw(6, 6), memory=0)
    model.rows = 4
    with pytest.raises(RuntimeError, match=r"'inner.2.weight' saw 4 inputs .* and 5 before"):
        seen["inner.2.weight"]
    model.rows = 5
    assert seen["inner.2.weight"].count == 5


def test_matrices_are_not_computed_within():
    model, x = mlp(), draw(5, 6)
    with Calibration(model, memory=0) as seen:
        model(x)
        assert seen["0.weight"].count == 5
        with pytest.raises(RuntimeError, match="leave the `with`"):
            seen["2.weight"]


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
        return self.head(x @ self.data.weight.data.T + F.linear(x, self.data.weight[:8]))


class Decoded(dict[str, torch.Tensor]):
    """Values that are made at each use, and held by nobody."""

    def get(self, name, default=None):
        return self[name].clone().view(-1).view(self[name].shape) if name in self else default


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
    replaced = Decoded()
    every = ["embed.weight", *seen.order]
    for name in dict.fromkeys(every):
        if name in seen:
            really = seeded(Attends()).eval()
            with torch.no_grad():
                for each, value in replaced.items():
                    really.get_parameter(each).copy_(value)
            expected = seen_of(really, *batches)
            assert_same(seen.gram(name, replaced), expected[name], 1e-6)
        replaced[name] = rounded[name]
    assert len(seen.order) == 1 + 2 + 4 + 1  # without the head, which is tied to the embedding
    assert all(torch.equal(state[name], each) for name, each in model.state_dict().items())


def test_sequential_without_replacements_is_the_direct_one():
    batches = [draw(9, 6), draw(5, 6)]
    torch.manual_seed(3)
    direct = seen_of(noisy(), *batches)
    torch.manual_seed(3)
    seen = seen_of(noisy(), *batches, sequential=True)
    for name in direct:
        assert_equal(seen.gram(name, {}), direct[name])
        assert_equal(seen[name], direct[name])


def test_sequential_stops_at_the_layer_and_survives_errors():
    model, x = mlp(), draw(5, 6)
    seen = seen_of(model, x, sequential=True)
    ran = []
    for name, each in model.named_children():
        each.register_forward_hook(lambda *_, name=name: ran.append(name))
    seen.gram("2.weight", {})
    assert ran == ["0", "1"]
    with pytest.raises(NonFiniteError, match=r"input of 2.weight"):
        seen.gram("2.weight", {"0.weight": torch.full((8, 6), math.inf)})
    with pytest.raises(ValueError, match=r"'0.weight' has shape \(8, 6\), got \(8, 5\)"):
        seen.gram("2.weight", {"0.weight": torch.zeros(8, 5)})
    assert seen.gram("2.weight", {}).count == 5
    with pytest.raises(RuntimeError, match="sequential=True"):
        seen_of(model, x).gram("0.weight", {})


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
    assert_same(seen.gram("experts.0.weight", {}), gram_of(some, some))
    assert_same(seen.gram("experts.0.weight", turned), gram_of(others, others))
    with pytest.raises(KeyError, match=r"experts\.1"):
        seen.gram("experts.1.weight", {"gate.weight": torch.zeros(2, 4)})


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
