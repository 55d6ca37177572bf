"""Activations that are clipped at a learned value and rounded."""

import math
import re
import warnings

import pytest
import torch
from torch import nn

from gradwire.errors import NonFiniteError
from gradwire.torch.activations import PACT, parameter_groups

TINY = torch.finfo(torch.float32).tiny


def reference(x: torch.Tensor, clip: float, bits: int, two_sided: bool):
    """Of float64, as formulas have it."""
    n, low = 2**bits - 1, -clip if two_sided else 0.0
    step = (clip - low) / n
    return low + step * ((x.clamp(low, clip) - low) / step).round()


def slope_of_clip(x: torch.Tensor, clip: float, bits: int, plus: bool, two_sided: bool):
    """Of y by the clip, as the papers have it."""
    n = 2**bits - 1
    above, below = (x >= clip).double(), (x <= -clip).double() if two_sided else torch.zeros(())
    inside = (x > (-clip if two_sided else 0.0)) & (x < clip)
    z = (x + clip) * n / (2 * clip) if two_sided else x * n / clip
    rounding = (2 if two_sided else 1) * (z.round() - z) / n
    return above - below + (torch.where(inside, rounding, 0.0) if plus else 0.0)


def values(*shape: int, seed: int = 0) -> torch.Tensor:
    draw = torch.Generator().manual_seed(seed)
    x = 2 * torch.randn(*shape, dtype=torch.float64, generator=draw)
    x.view(-1)[:4] = torch.tensor([0.0, 3.0, -3.0, 100.0])  # the ends of a clip of 3 too
    return x


@pytest.mark.parametrize("two_sided", [False, True])
@pytest.mark.parametrize("plus", [False, True])
@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_values_and_gradients_are_those_of_the_formulas(bits, plus, two_sided):
    x = values(1000).requires_grad_()
    act = PACT(bits, 3.0, plus, two_sided)
    y = act(x)
    torch.testing.assert_close(y, reference(x.detach(), 3.0, bits, two_sided))
    assert len(y.unique()) <= 2**bits
    gradient = torch.randn(1000, dtype=torch.float64)
    y.backward(gradient)
    inside = (x > (-3.0 if two_sided else 0.0)) & (x < 3.0)
    assert torch.equal(x.grad, torch.where(inside, gradient, 0.0))
    expected = (gradient * slope_of_clip(x.detach(), 3.0, bits, plus, two_sided)).sum()
    torch.testing.assert_close(act.clip.grad, expected.float())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_few_bits_of_a_mantissa_do_not_reach_the_sums(dtype):
    x = values(50_000).to(dtype).requires_grad_()
    act, exact = PACT(4, 3.0), PACT(4, 3.0)
    y = act(x)
    assert y.dtype is dtype
    y.backward(torch.ones_like(y))
    wide = x.detach().double()
    exact(wide).sum().backward()
    assert x.grad.dtype is dtype
    torch.testing.assert_close(act.clip.grad, exact.clip.grad, rtol=1e-4, atol=0.1)


def test_a_compiled_module_has_the_same_gradients():
    x = torch.randn(64, 8, requires_grad=True)
    model = nn.Sequential(nn.Linear(8, 8), PACT(2, 1.0), PACT(3, 1.0, two_sided=True, plus=False))
    found = []
    for each in (model, torch.compile(model, backend="aot_eager", fullgraph=True)):
        each.zero_grad()
        each(x).square().sum().backward()
        found.append([one.grad.clone() for one in model.parameters()])
    torch.testing.assert_close(*found)


def test_a_clip_of_zero_or_less_is_held_and_comes_back():
    act = PACT(8, 0.1)
    x = torch.rand(100)
    x[0] = 0.0
    with torch.no_grad():
        act.clip.fill_(-0.5)
    with pytest.warns(RuntimeWarning, match=re.escape("PACT(bits=8, plus=True) reached -0.5")):
        y = act(x)
    assert float(y.detach().max()) <= 256 * TINY
    assert float(y.detach()[0]) == 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        act(x)  # said once
    optimizer = torch.optim.SGD(act.parameters(), lr=0.02)
    for _ in range(3):
        optimizer.zero_grad()
        (act(x) - x).square().sum().backward()
        optimizer.step()
    assert float(act.clip) > 0.5


def test_nan_is_not_hidden_and_a_clip_of_nan_is_named():
    x = torch.rand(10)
    x[3] = torch.nan
    act = PACT(2, 0.5)
    y = act(x)
    assert y.isnan().tolist() == x.isnan().tolist()
    y.sum().backward()
    assert act.clip.grad.isnan()
    act = PACT(2, 0.5)
    gradient = torch.zeros(10)
    gradient[7] = torch.nan
    act(torch.rand(10)).backward(gradient)
    torch.optim.SGD(act.parameters(), lr=0.1).step()
    with pytest.raises(NonFiniteError, match=re.escape("the clip of PACT(bits=2, plus=True)")):
        act(x)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"bits": 0}, "bits must be at least 1"),
        ({"bits": 9}, "bits must be at most 8"),
        ({"bits": 2, "clip": 0.0}, "clip must be greater than 0"),
        ({"bits": 2, "clip": math.nan}, "clip must be finite"),
    ],
)
def test_arguments_out_of_range_are_refused(arguments, told):
    with pytest.raises(ValueError, match=told):
        PACT(**arguments)


def test_groups_decay_the_clips_of_pact_and_not_those_of_pact_plus():
    model = nn.Sequential(nn.Linear(2, 2), PACT(2, plus=False), PACT(2), nn.Linear(2, 2))
    model.append(model[2])
    groups = parameter_groups(model, 0.1)
    assert [group["weight_decay"] for group in groups] == [0.1, 0.1, 0.0]
    assert [len(group["params"]) for group in groups] == [4, 1, 1]
    assert groups[1]["params"][0] is model[1].clip
    assert groups[2]["params"][0] is model[2].clip
    torch.optim.SGD(groups, lr=0.1)  # which refuses a parameter in two groups
    assert len(parameter_groups(nn.Linear(2, 2), 0.1)) == 1
    with pytest.raises(ValueError, match="weight_decay must be finite and not negative"):
        parameter_groups(model, -1.0)
