"""A penalty on the kurtosis of outputs."""

import pytest
import torch
from torch import nn

from gradwire.torch.activations import KurtosisPenalty
from gradwire.torch.activations.kurtosis import _Kurtosis


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))


def kurtosis(y: torch.Tensor) -> torch.Tensor:
    d = y - y.mean()
    return d.pow(4).mean() / d.square().mean().square()


def test_the_gradient_in_closed_form_is_that_of_differences():
    y = torch.randn(20, dtype=torch.float64).pow(3).requires_grad_()
    assert torch.autograd.gradcheck(_Kurtosis.apply, (y,))
    torch.testing.assert_close(_Kurtosis.apply(y), kurtosis(y))


def test_the_penalty_is_the_weighted_sum_over_outputs():
    model, x = net(), torch.randn(32, 8)
    penalty = KurtosisPenalty(model, 0.5)
    y = model(x)
    first = model[0](x)  # is seen too
    found = penalty.penalty()
    expected = 0.5 * (2 * kurtosis(first) + kurtosis(y))
    torch.testing.assert_close(found, expected)
    got = torch.autograd.grad(found, list(model.parameters()), retain_graph=True)
    want = torch.autograd.grad(expected, list(model.parameters()))
    torch.testing.assert_close(got, want)


def test_training_with_it_takes_outliers_away():
    model, x = net(), torch.randn(256, 8)
    with torch.no_grad():
        model[0].weight[0] *= 10.0
    penalty = KurtosisPenalty(model, 1.0, ["0"])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    with torch.no_grad():
        before = float(kurtosis(model[0](x)))
    for _ in range(60):
        optimizer.zero_grad()
        model(x)
        penalty.penalty().backward()
        optimizer.step()
    with torch.no_grad():
        assert float(kurtosis(model[0](x))) < 4.0 < before / 4


def test_outputs_are_seen_in_training_with_gradients_until_it_is_removed():
    model, x = net(), torch.randn(4, 8)
    penalty = KurtosisPenalty(model, 1.0, "*")
    model.eval()(x)
    with torch.no_grad():
        model.train()(x)
    with pytest.raises(RuntimeError, match="no output was seen"):
        penalty.penalty()
    model(x)
    penalty.remove()
    model(x)
    with pytest.raises(RuntimeError, match="no output was seen"):
        penalty.penalty()
    assert not any(each._forward_hooks for each in model.modules())


@pytest.mark.parametrize(
    ("weight", "modules", "told"),
    [
        (0.0, None, "weight must be greater than 0"),
        (1.0, ["3"], "no module is called '3'"),
        (1.0, [], "pass modules="),
    ],
)
def test_what_it_cannot_see_is_refused(weight, modules, told):
    with pytest.raises(ValueError, match=told):
        KurtosisPenalty(net(), weight, modules)
