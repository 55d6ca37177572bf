"""What reading the weight of a packed or a rounded module gives: values that take no writes."""

import copy
import io
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from gradwire import quantize
from gradwire.torch import weights
from gradwire.torch.weights import PackedEmbedding

FOUR = quantize.Affine(4, 64)
DELTA = torch.ones(64, 64)


def made(kind: Any, change: Callable[..., object], dtype: torch.dtype = torch.float32) -> Any:
    torch.manual_seed(0)
    layer = kind(64, 64, dtype=dtype)
    change(layer, {"*": FOUR})
    return layer


packed = partial(made, nn.Linear, weights.pack)
rounded = partial(made, nn.Linear, weights.straight_through)
looked_up = partial(made, nn.Embedding, weights.pack)


def augmented_data(layer: Any) -> None:
    layer.weight.data += DELTA


def merged_safely(layer: Any) -> None:
    weight = layer.weight.data.clone()  # as in the `merge` of PEFT
    weight += DELTA
    layer.weight.data = weight


def trained(layer: Any) -> None:
    weight = layer.weight
    optimizer = torch.optim.SGD([weight], 0.1)
    weight.grad = DELTA
    optimizer.step()


WRITES: dict[str, Callable[[Any], object]] = {
    "data += d": augmented_data,
    "data = clone + d": merged_safely,
    "add_": lambda m: m.weight.add_(DELTA),
    "mul_ of a view": lambda m: m.weight.T.mul_(2),
    "copy_": lambda m: m.weight.copy_(DELTA),
    "detach().copy_": lambda m: m.weight.detach().copy_(DELTA),
    "row": lambda m: m.weight[3].zero_(),
    "setitem": lambda m: m.weight.__setitem__((0, 3), 1.0),
    "out=": lambda m: torch.add(DELTA, DELTA, out=m.weight),
    "inplace=True": lambda m: F.relu(m.weight, inplace=True),
    "foreach": lambda m: torch._foreach_mul_([DELTA.clone(), m.weight], 2.0),
    "nn.init.zeros_": lambda m: nn.init.zeros_(m.weight),
    "clip_grad of a gradient": lambda m: setattr(m.weight, "grad", DELTA),
    "requires_grad_": lambda m: m.weight.requires_grad_(),
    "set_": lambda m: m.weight.set_(DELTA),
    "resize_": lambda m: m.weight.resize_(3),
    "renorm": lambda m: F.embedding(torch.arange(3), m.weight, max_norm=0.01),
    "optimizer": trained,
}


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("make", [packed, rounded, looked_up])
@pytest.mark.parametrize("write", WRITES)
def test_a_write_to_a_weight_that_is_read_raises_and_changes_nothing(write, make, mode):
    layer = make()
    before = layer.weight.detach().clone()
    told = r"is (packed|rounded)|non-leaf|don't support automatic differentiation"
    with mode(), pytest.raises((ValueError, RuntimeError), match=told):
        WRITES[write](layer)
    assert torch.equal(layer.weight, before)


def test_numpy_arrays_of_a_weight_are_read_only():
    for array in (packed().weight.numpy(), np.asarray(packed().weight)):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("make", [packed, rounded])
def test_reading_is_as_of_any_tensor(make, dtype):
    layer = make(dtype)
    weight, plain = layer.weight, layer.weight.detach().clone()
    assert type(plain) is type(weight + 1) is type(weight.float() * 1) is torch.Tensor
    assert (weight.shape, weight.dtype, weight.device) == (plain.shape, dtype, plain.device)
    assert (weight.ndim, weight.dim(), weight.size(0), weight.numel()) == (2, 2, 64, 4096)
    assert (len(weight), weight.nbytes, weight.stride()) == (64, plain.nbytes, (64, 1))
    assert isinstance(weight, torch.Tensor)
    x = torch.ones(3, 64, dtype=dtype)
    assert torch.equal(F.linear(x, weight), F.linear(x, plain))
    assert torch.equal(x @ weight.T, x @ plain.T)
    for at in (0, -1, 63, torch.tensor(5), slice(2, 9), (2, 3), torch.arange(3), [1, 4], ..., None):
        assert torch.equal(layer.weight[at], plain[at])
    for at in (64, -65):
        with pytest.raises(IndexError):
            layer.weight[at]
    assert [row.sum() for row in weight] == [row.sum() for row in plain]
    assert torch.equal(torch.stack([weight, weight])[1], plain)
    assert repr(plain)[:30] in repr(weight.detach())
    other = nn.Linear(64, 64, dtype=dtype)
    other.load_state_dict({"weight": layer.weight, "bias": layer.bias})
    with torch.no_grad():
        other.weight.add_(layer.weight)
        other.weight.sub_(layer.weight).copy_(layer.weight)
    assert torch.equal(other.weight, plain)
    own = layer.weight.clone()
    with torch.no_grad():
        own += 1
    assert torch.equal(own, plain + 1)


@pytest.mark.parametrize("make", [packed, rounded])
def test_copies_and_files_of_a_weight_are_plain_tensors(make):
    weight = make().weight.detach()
    file = io.BytesIO()
    torch.save({"weight": weight}, file)
    file.seek(0)
    for each in (
        copy.deepcopy(weight),
        pickle.loads(pickle.dumps(weight)),
        torch.load(file)["weight"],
    ):
        assert type(each) is torch.Tensor
        assert torch.equal(each.add_(1), weight + 1)


def test_a_weight_that_was_read_keeps_its_values():
    layer, other = packed(), nn.Linear(64, 64)
    nn.init.zeros_(other.weight)
    weights.pack(other, {"*": FOUR})
    before = layer.weight
    expected = layer.weight.clone()
    layer.load_state_dict(other.state_dict())
    assert torch.equal(before, expected)
    assert not layer.weight.any()


def test_gradients_reach_a_rounded_parameter_through_its_view():
    layer = rounded()
    assert layer.weight.requires_grad
    (latent, _) = layer.parameters()
    (F.linear(torch.ones(2, 64), layer.weight).sum() + layer.weight[3].sum()).backward()
    assert torch.equal(latent.grad[3], torch.full((64,), 3.0))
    (through,) = torch.autograd.grad((layer.weight * 2).sum(), [latent])
    assert torch.equal(through, torch.full((64, 64), 2.0))


# Ties.


def test_the_weight_of_another_packed_module_ties_them():
    torch.manual_seed(1)
    embed, head = looked_up(), packed()
    assert isinstance(embed, PackedEmbedding)
    head.weight = embed.weight
    assert head.packed is embed.packed
    x = torch.randn(3, 64)
    torch.testing.assert_close(head(x), x @ embed.weight.T + head.bias)
    model = nn.ModuleList([embed, head])
    assert torch.equal(model.get_parameter("1.weight"), embed.weight)
    small = nn.Linear(64, 8)
    weights.pack(small, {"*": FOUR})
    with pytest.raises(ValueError, match=r"shape \(8, 64\), and cannot be tied to .*\(64, 64\)"):
        small.weight = embed.weight
    for wrong in (embed.weight[:8], embed.weight.clone(), nn.Parameter(torch.zeros(8, 64))):
        with pytest.raises(TypeError, match="packed"):
            small.weight = wrong


def test_the_weight_of_another_rounded_module_ties_their_parameters():
    one, other = rounded(), rounded()
    one.weight = other.weight
    assert one._parameters["weight"] is other._parameters["weight"]
    assert torch.equal(nn.ModuleList([one]).get_parameter("0.weight"), other.weight)


# Unpacking.


def test_an_adapter_is_merged_into_an_unpacked_model_and_packed_again():
    torch.manual_seed(0)
    model = nn.ModuleDict(
        {"embed": nn.Embedding(64, 64), "head": nn.Linear(64, 64), "out": nn.Linear(64, 2)}
    )
    model["head"].weight = model["embed"].weight
    state = list(model.state_dict())
    weights.pack(model, {"*": FOUR})
    decoded = {name: model[name].weight.clone() for name in model}
    pickled = pickle.loads(pickle.dumps(model))
    assert weights.unpack(model) is model
    assert [type(each) for each in model.values()] == [nn.Embedding, nn.Linear, nn.Linear]
    assert list(model.state_dict()) == state
    assert model["head"].weight is model["embed"].weight
    for name, values in decoded.items():
        assert torch.equal(model[name].weight, values)
        assert model[name].weight.requires_grad
    merged_safely(model["head"])
    augmented_data(model["head"])
    weights.pack(model, {"*": FOUR})
    moved = model["embed"].weight - decoded["embed"]
    assert (moved - 2).abs().max() < 0.5  # the step of 4 bits
    assert torch.equal(pickled["embed"].weight, decoded["embed"])
    weights.unpack(weights.unpack(nn.Sequential(nn.Linear(2, 2))))  # nothing to do
