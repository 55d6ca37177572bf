"""What reaches weights: linear layers, precisions, experts, errors in the midst, and files."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from gradwire.errors import NonFiniteError
from gradwire.torch import weights
from gradwire.torch.weights import Calibration
from gradwire.weights import load_grams
from tests.torch.weights.grams import (
    Captured,
    assert_equal,
    assert_same,
    draw,
    gram_of,
    mlp,
    seeded,
    seen_of,
)

# Linear layers.


@pytest.mark.parametrize("shape", [(6,), (5, 6), (2, 3, 6), (9000, 6)])
def test_linear(shape):
    model, x = mlp(), draw(*shape)
    calls = Captured(model).calls
    with Calibration(model) as seen:
        y = model(x)
        model(x + 1)
    assert torch.equal(y, model(x))
    assert list(seen) == ["0.weight", "2.weight", "3.weight"]
    assert seen.unseen == ()
    for name, found in seen.items():
        assert_same(found, gram_of(*calls[name.removesuffix(".weight")][:2]))


@pytest.mark.parametrize("no_gradients", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_sums_of_one_mode_go_on_in_another(no_gradients):
    model, x = mlp(), draw(5, 6)
    with Calibration(model) as seen, no_gradients():
        model(x)
        model(x)
    with seen:
        model(x)
    assert_same(seen["0.weight"], gram_of(x, x, x))


def test_a_weight_that_is_used_outside_of_its_module_is_not_seen():
    class Functional(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(6, 6))
            self.layer, self.head = nn.Linear(6, 6), nn.Linear(6, 3)

        def forward(self, x):
            return self.head(F.linear(x @ self.weight, self.layer.weight))

    model = Functional()
    with Calibration(model) as seen:
        model(draw(5, 6))
    assert (list(seen), seen.unseen) == (["head.weight"], ("weight", "layer.weight"))


def test_a_weight_that_two_layers_share_sees_both_and_one_that_is_looked_up_has_no_matrix():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(20, 6)
            self.inner, self.unused = nn.Linear(6, 6), nn.Linear(6, 6)
            self.again = self.inner
            self.together = nn.Parameter(torch.zeros(4, 3, 6))
            self.head = nn.Linear(6, 20, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, x):
            self.unused(x.new_zeros(0, 6, dtype=torch.float32))
            return self.head(self.again(self.inner(self.embed(x))))

    model, x = seeded(Tied()), torch.arange(7)
    calls = Captured(model).calls
    with Calibration(model) as seen:
        model(x)
    assert_same(seen["inner.weight"], gram_of(*calls["inner"]))
    assert len(calls["inner"]) == 2
    assert set(seen) == {"inner.weight"}
    assert seen.shared == ("embed.weight",)
    assert seen.unseen == ("together", "unused.weight")  # no input reached it
    assert "embed.weight" not in seen


def test_products_are_exact_enough_for_inputs_of_any_size():
    model = mlp().double()
    with Calibration(model) as seen:
        model(x := draw(50, 6).double())
    assert_same(seen["0.weight"], gram_of(x), 1e-14)
    for scale in (1e-22, 1e22):
        model, x = mlp(), draw(50, 6) * scale
        with Calibration(model) as seen:
            model(x)
        assert_same(seen["0.weight"], gram_of(x))


def test_inputs_in_common_are_multiplied_once(monkeypatch):
    class Three(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.k, self.v = (nn.Linear(6, 6) for _ in range(3))

        def forward(self, x):
            y = self.q(x), self.k(x)
            x.mul_(2)
            return *y, self.v(x)

    model, x = Three(), draw(5, 6)
    multiplied = []
    blocks = weights.inputs.Inputs.blocks
    monkeypatch.setattr(
        weights.inputs.Inputs,
        "blocks",
        lambda inputs, dtype: multiplied.append(inputs) or blocks(inputs, dtype),
    )
    with torch.no_grad(), Calibration(model) as seen:
        model(x.clone())
    assert len(multiplied) == 2
    assert_same(seen["k.weight"], gram_of(x))
    assert_same(seen["v.weight"], gram_of(2 * x))


# Precisions and modes.


def test_autocast_multiplies_what_arrives_in_float32():
    model, x = mlp(), draw(500, 6)
    calls = Captured(model).calls
    with Calibration(model) as seen, torch.autocast("cpu", torch.bfloat16):
        y = model(x)
    assert y.dtype is torch.bfloat16
    assert calls["2"][0].dtype is torch.bfloat16
    assert_same(seen["0.weight"], gram_of(x))
    assert_same(seen["2.weight"], gram_of(calls["2"][0]))


def test_training_goes_on_as_without():
    def trained(entered):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.BatchNorm1d(8), nn.Linear(8, 2))
        seen = Calibration(model)
        with seen if entered else torch.enable_grad():
            model(draw(9, 6)).square().sum().backward()
        return [*(each.grad for each in model.parameters()), *model.buffers()]

    assert all(map(torch.equal, trained(True), trained(False)))


@pytest.mark.full
def test_a_compiled_model_runs_uncompiled():
    model, x = mlp(), draw(5, 6)
    compiled = torch.compile(model, backend="eager")
    compiled(x)
    with Calibration(compiled) as seen:
        compiled(x)
    assert list(seen) == ["0.weight", "2.weight", "3.weight"]
    assert_same(seen["0.weight"], gram_of(x))


# Errors in the midst.


def test_an_error_in_the_midst_leaves_what_was_seen():
    class Stops(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)

        def forward(self, x, stop=False):
            x = self.a(x)
            if stop:
                raise KeyboardInterrupt
            return self.b(x)

    model, x = Stops(), draw(5, 6)
    seen = seen_of(model, x)
    with pytest.raises(KeyboardInterrupt), seen:
        model(x, stop=True)
    assert_same(seen["a.weight"], gram_of(x, x))
    assert seen["b.weight"].count == 5
    with seen:
        model(x)
    assert (seen["a.weight"].count, seen["b.weight"].count) == (15, 10)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_inputs_that_are_not_finite_name_the_layer(value):
    model, x = mlp(), draw(5, 6)
    bad = x.clone()
    bad[2, 1] = value
    with Calibration(model) as seen:
        model(x)
        before = dict(seen)
        with pytest.raises(NonFiniteError, match=r"input of 0.weight.*1 non-finite.*position 13"):
            model(bad)
    for name, found in seen.items():
        assert_equal(found, before[name])


def test_what_cannot_be_calibrated():
    with pytest.raises(TypeError, match="unwrapped"):
        Calibration(nn.DataParallel(mlp()))
    seen = Calibration(mlp())
    with seen, pytest.raises(RuntimeError, match="entered already"):
        seen.__enter__()
    with pytest.raises(KeyError, match=r"0\.weight"):
        seen["0.weight"]


# Merging and files.


def test_two_merge_into_what_one_would_have_seen_unless_they_are_of_other_models():
    model, a, b = mlp(), draw(5, 6), draw(7, 6, seed=1)
    seen, direct = seen_of(model, a), seen_of(model, a, b)
    merged = seen + seen_of(mlp(), b)
    assert list(merged) == list(direct)
    for name in direct:
        assert_same(merged[name], direct[name], 1e-12)
    with pytest.raises(ValueError, match=r"of '4\.weight', and no such weight"):
        seen + seen_of(nn.Sequential(*mlp(), nn.Linear(3, 3)), draw(5, 6))
    with pytest.raises(ValueError, match=r"'0.weight' has shape \(8, 6\), but its Gram"):
        seen + seen_of(nn.Sequential(nn.Linear(5, 8), nn.ReLU()), draw(5, 5))
    with pytest.raises(ValueError, match="sequential"):
        seen + Calibration(mlp(), sequential=True)
    with pytest.raises(TypeError):
        seen + {}


@pytest.mark.parametrize("options", [{}, {"sequential": True}], ids=str)
def test_files_hold_it_exactly_and_it_goes_on(tmp_path, options):
    model, a, b = mlp(), draw(5, 6), draw(7, 6)
    seen = seen_of(model, a, **options)
    seen.save(tmp_path / "f")
    assert list(load_grams(tmp_path / "f")) == list(seen)
    loaded = Calibration.load(tmp_path / "f", mlp())
    for name in seen:
        assert_equal(loaded[name], seen[name])
    model = loaded._model
    with loaded, pytest.raises(NonFiniteError):
        model(b * math.nan)
    assert_equal(loaded["0.weight"], seen["0.weight"])
    with loaded:
        model(b)
    for name in seen:
        assert_same(loaded[name], seen_of(model, a, b)[name], 1e-12)
    loaded.save(tmp_path / "g")
    assert_equal(load_grams(tmp_path / "g")["0.weight"], loaded["0.weight"])
    with pytest.raises(ValueError, match="no such weight"):
        Calibration.load(tmp_path / "f", nn.Sequential(nn.ReLU()))
