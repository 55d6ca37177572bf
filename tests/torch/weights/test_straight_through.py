"""Training with weights that are rounded where they are read."""

import copy
import pickle
import re

import numpy as np
import pytest
import torch
from torch import nn

import gradwire
from gradwire import quantize
from gradwire.errors import NonFiniteError
from gradwire.torch import activations, weights
from gradwire.torch.weights import PackedLinear, straight_through

TWO = quantize.Affine(2, None, fit="sawb")
FOUR = quantize.Affine(4, 64)
FITS = ("range", "squares", "zero", "sawb")


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8 * 16, 4), nn.Linear(4, 4))


def images() -> torch.Tensor:
    return torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(1))


def packed_values(parameter: torch.Tensor, how: quantize.Affine) -> torch.Tensor:
    array = parameter.detach().to(torch.float32).numpy()
    return torch.from_numpy(gradwire.weights.pack(array, how).unpack()).to(parameter.dtype)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.detach(), b.detach()) and a.stride() == b.stride()


# Values and gradients.


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("fit", FITS)
def test_a_module_reads_what_its_packed_weight_decodes_to(fit, dtype):
    model = nn.Sequential(nn.Linear(96, 8), nn.Embedding(10, 48)).to(dtype)
    how = quantize.Affine(3, 64, fit=fit)
    expected = [packed_values(each.weight, how) for each in model]
    straight_through(model, {"*": how})
    assert all(same(each.weight, one) for each, one in zip(model, expected, strict=True))
    assert not same(model[0].weight, dict(model.named_parameters())["0.weight"])


@pytest.mark.parametrize("clipped", ["pass", "zero"])
@pytest.mark.parametrize("fit", FITS)
def test_the_gradient_goes_straight_through_or_ends_beyond_the_grid(fit, clipped):
    torch.manual_seed(0)
    layer = nn.Linear(64, 8, bias=False)
    how = quantize.Affine(2, 32, fit=fit)
    packed = packed_values(layer.weight, how).view(-1, 32)
    straight_through(layer, {"weight": how}, clipped=clipped)
    (latent,) = layer.parameters()
    gradient = torch.randn(8, 64)
    (layer.weight * gradient).sum().backward()
    if clipped == "pass" or fit in ("range", "zero"):
        assert torch.equal(latent.grad, gradient)
        return
    values = latent.detach().view(-1, 32)
    end = packed.abs().amax(1, keepdim=True)  # of a symmetric grid
    if fit == "squares":
        top, bottom = packed.amax(1, keepdim=True), packed.amin(1, keepdim=True)
        middle, end = (top + bottom) / 2, (top - bottom) / 2 * 4 / 3  # and half a step
        values = values - middle
    beyond = (values.abs() > end * 1.002).view(8, 64)
    near = ((values.abs() > end) & (values.abs() < end * 1.002)).view(8, 64)
    assert beyond.sum() > 5
    assert torch.equal(latent.grad[~near], torch.where(beyond, 0, gradient)[~near])


def test_every_step_sees_the_weights_of_that_step():
    model, how = net(), {"*": TWO}
    straight_through(model, how)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9, weight_decay=1e-2)
    seen = []
    for _ in range(3):
        model(images()).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        latent = dict(model.named_parameters())["0.weight"]
        assert same(model[0].weight, packed_values(latent, TWO))
        seen.append(model[0].weight.detach())
    assert not torch.equal(seen[0], seen[2])


def test_tied_weights_are_rounded_in_every_place_and_share_a_gradient():
    model = nn.ModuleDict({"embed": nn.Embedding(20, 32), "head": nn.Linear(32, 20, bias=False)})
    model["head"].weight = model["embed"].weight
    straight_through(model, {"head.weight": FOUR})
    assert same(model["embed"].weight, model["head"].weight)
    ((_, latent),) = model.named_parameters()
    (model["embed"].weight.sum() + model["head"].weight.sum()).backward()
    assert torch.equal(latent.grad, torch.full((20, 32), 2.0))
    weights.pack(model, {"*": FOUR})
    assert model["embed"].packed is model["head"].packed


# Export.


def test_packing_gives_the_codes_that_training_saw_and_ends_the_rounding():
    model = nn.Sequential(net(), activations.PACT(2))
    straight_through(model, {"0.3.*": None, "*": TWO})
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(3):
        model(images()).square().mean().backward()
        optimizer.step()
    clip, before = model[1].clip.detach().clone(), model(images())
    latent = {name: each.detach().clone() for name, each in model.named_parameters()}
    seen = [model[0][i].weight.detach().clone() for i in (0, 2)]
    report = weights.pack(model, {"0.3.*": None, "*": TWO})
    assert [each.held for each in report.tensors] == ["decoded", "linear"]
    assert [type(each) for each in model[0]] == [nn.Conv2d, nn.Flatten, PackedLinear, nn.Linear]
    assert all(same(model[0][i].weight, one) for i, one in zip((0, 2), seen, strict=True))
    expected = gradwire.weights.pack(latent["0.2.weight"].numpy(), TWO)
    assert bytes(model[0][2].packed.frame) == bytes(expected.frame)
    assert isinstance(model[0][0].weight, nn.Parameter)
    assert torch.equal(model[1].clip, clip)
    torch.testing.assert_close(model(images()), before)


def test_packing_that_fails_leaves_a_model_rounded():
    model = net()
    straight_through(model, {"0.*": TWO})
    with torch.no_grad():
        dict(model.named_parameters())["3.weight"][0, 0] = torch.nan
    with pytest.raises(NonFiniteError):
        weights.pack(model, {"*": TWO})
    assert len(model[0].weight.unique()) == 4


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_read_rounded_weights_and_are_packed_with_them(kind):
    torch.manual_seed(0)
    layer = kind(8, 16, num_layers=2, batch_first=True, bidirectional=True)
    model, x = nn.ModuleDict({"rnn": layer}), torch.randn(3, 5, 8)
    reference = copy.deepcopy(layer)
    with torch.no_grad():
        for name, each in reference.named_parameters():
            if "weight" in name:
                each.copy_(packed_values(each, FOUR))
    straight_through(model, {"*": FOUR})
    expected, _ = reference(x)
    assert torch.equal(layer(x)[0], expected)
    layer(x)[0].sum().backward()
    expected.sum().backward()
    for (_, got), (_, want) in zip(
        model.named_parameters(), reference.named_parameters(), strict=True
    ):
        torch.testing.assert_close(got.grad, want.grad)
    torch.optim.SGD(model.parameters(), lr=1.0).step()
    assert not torch.equal(layer(x)[0], expected)
    after = layer(x)[0]
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), model.double().float()):
        assert torch.equal(other["rnn"](x)[0], after)
    weights.pack(model, {"*": FOUR})
    assert type(layer) is kind
    assert torch.equal(layer(x)[0], after)


# What stays as it was.


def test_names_order_and_state_dicts_are_those_of_the_model_without_rounding():
    dense, model = net(), net()
    straight_through(model, {"*": TWO})
    assert [n for n, _ in model.named_parameters()] == [n for n, _ in dense.named_parameters()]
    assert list(model.state_dict()) == list(dense.state_dict())
    with torch.no_grad():
        dense[0].weight.mul_(2.0)
    model.load_state_dict(dense.state_dict())
    assert same(model[0].weight, packed_values(dense[0].weight, TWO))
    other = net()
    other.load_state_dict(model.state_dict())
    assert torch.equal(other[0].weight, dense[0].weight)


def test_copies_pickles_and_compiled_models_compute_the_same():
    model = net()
    straight_through(model, {"*": TWO})
    expected = model(images())
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(other(images()), expected)
        assert list(map(type, other)) == list(map(type, model))
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(images()), expected)
    compiled(images()).sum().backward()
    found = [each.grad.clone() for each in model.parameters()]
    model.zero_grad()
    model(images()).sum().backward()
    torch.testing.assert_close(found, [each.grad for each in model.parameters()])


def test_the_operator_keeps_what_it_promises_to_torch():
    weight = torch.randn(4, 32, requires_grad=True)
    for clips in (False, True):
        arguments = (weight, 2, None, "sawb", clips, "w")
        torch.library.opcheck(torch.ops.gradwire.affine_rounded.default, arguments)


def test_the_rounding_ends_with_its_block():
    model = net()
    kinds = list(map(type, model))
    with straight_through(model, {"0.*": TWO, "2.*": FOUR}):
        assert len(model[0].weight.unique()) == 4
        assert "weight: 2 bits" in repr(model)
    assert list(map(type, model)) == kinds
    assert isinstance(model[0].weight, nn.Parameter)
    straight_through(model, {"0.*": FOUR})
    assert len(model[0].weight.unique()) > 4


# What is refused.


@pytest.mark.parametrize(
    ("rules", "options", "error", "told"),
    [
        ({"conv": TWO}, {}, ValueError, "no parameter is called 'conv'"),
        ({"*": 2}, {}, TypeError, "must be Affine or None"),
        ({"*": TWO}, {"clipped": "stop"}, ValueError, "clipped must be one of pass, zero"),
        ({"0.*": quantize.Affine(2, 16)}, {}, ValueError, "which no block of 16 to 16 divides"),
        (
            {"*": quantize.Affine(2, fit="range", rounding="stochastic")},
            {}, ValueError, "must be rounded to nearest",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_rounded_is_refused(rules, options, error, told):
    model = net()
    with pytest.raises(error, match=re.escape(told)):
        straight_through(model, rules, **options)
    assert type(model[0]) is nn.Conv2d


def test_empty_packed_and_non_finite_weights_are_refused():
    with pytest.raises(ValueError, match=r"'0\.weight' must have 1 to"):
        straight_through(nn.Sequential(nn.Linear(0, 3)), {"*.weight": TWO})
    model = net()
    weights.pack(model, {"2.*": FOUR})
    with pytest.raises(ValueError, match=r"'2\.weight' is already packed"):
        straight_through(model, {"2.*": TWO})
    with torch.no_grad():
        model[0].weight[0, 0, 0, 0] = np.inf
    with pytest.raises(NonFiniteError, match=r"'0\.weight'"):
        straight_through(model, {"3.*": TWO, "0.*": TWO})
    assert type(model[3]) is nn.Linear


def test_a_weight_that_becomes_nan_is_named_when_it_is_read():
    model = net()
    straight_through(model, {"*": TWO})
    with torch.no_grad():
        dict(model.named_parameters())["2.weight"][0, 0] = torch.nan
    with pytest.raises(NonFiniteError, match=r"'2\.weight'"):
        model(images())
