"""Packed and rounded weights in forward mode, `torch.func`, `torch.jit` and compiled models."""

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.func import (
    functional_call,
    grad,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    vjp,
    vmap,
)

from gradwire import quantize
from gradwire.torch import weights

FOUR = quantize.Affine(4, 16)
ROWS = (1, 5, 40)


class Experts(nn.Module):
    """Some matrices in one parameter, as in mixtures of experts."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.randn(3, 16, 32))
        self.down = nn.Parameter(torch.randn(3, 32, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for i in range(3):
            x = x + (x @ self.up[i]).tanh() @ self.down[i] / 8
        return x


def dense_and_packed(dtype: torch.dtype = torch.float64) -> tuple[Any, Any]:
    """A model of all that stays packed in a layer, and a dense one with the decoded weights."""
    torch.manual_seed(0)
    dense = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), Experts(), nn.Linear(16, 4)).to(dtype)
    packed = copy.deepcopy(dense)
    report = weights.pack(packed, {"*": FOUR})
    assert [row.held for row in report.tensors] == ["linear", "experts", "experts", "linear"]
    dense.load_state_dict(weights.unpack(copy.deepcopy(packed)).state_dict())
    return dense, packed


def some(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1), dtype=dtype)


# Forward mode.


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", ROWS)
def test_tangents_go_through_packed_layers(rows, dtype):
    dense, packed = dense_and_packed(dtype)
    x, t = some(rows, 16, dtype=dtype), some(rows, 16, dtype=dtype) + 1
    wanted, ours = (jvp(model, (x,), (t,)) for model in (dense, packed))
    assert ours[1].abs().max() > 0.1
    near = {torch.float64: 1e-6, torch.float32: 1e-4, torch.bfloat16: 0.2}[dtype]
    torch.testing.assert_close(ours, wanted, atol=near, rtol=near)
    for mode in (torch.enable_grad, torch.no_grad):
        with mode(), forward_ad.dual_level():
            dual = packed(forward_ad.make_dual(x, t))
            torch.testing.assert_close(forward_ad.unpack_dual(dual).tangent, ours[1])


@pytest.mark.parametrize("rows", [3, 20])
def test_derivatives_of_a_layer_are_what_differences_say(rows):
    layer = dense_and_packed()[1][0]
    x = some(rows, 16).requires_grad_()
    assert torch.autograd.gradcheck(
        layer, (x,), check_forward_ad=True, check_batched_grad=True, check_batched_forward_grad=True
    )
    assert torch.autograd.gradgradcheck(
        layer, (x,), check_fwd_over_rev=True, check_rev_over_rev=True
    )


def test_tangents_and_gradients_agree_for_rounded_weights():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 8), nn.Tanh(), nn.LSTMCell(8, 4)).double()
    weights.straight_through(
        model, {"*weight*": quantize.Affine(2, None, fit="sawb")}, clipped="zero"
    )
    own = {name: each.detach() for name, each in model.named_parameters()}
    x = some(3, 16)

    def loss(parameters: dict[str, torch.Tensor]) -> Any:
        return functional_call(model, parameters, (x,))[0].square().sum()

    pull = {name: torch.randn_like(each) for name, each in own.items()}
    (_, tangent), gradient = jvp(loss, (own,), (pull,)), grad(loss)(own)
    torch.testing.assert_close(tangent, sum((gradient[n] * pull[n]).sum() for n in own))
    assert tangent.abs() > 1e-3
    assert any(not each.all() for each in gradient.values())  # beyond the grid


# torch.func.


def test_transforms_give_what_they_give_for_dense_layers():
    dense, packed = dense_and_packed()
    x, batch = some(16), some(6, 16)

    def loss(model: nn.Module, x: torch.Tensor) -> Any:
        return model(x).square().sum()

    for of in (
        lambda m: grad(lambda x: loss(m, x))(x),
        lambda m: jacrev(m)(x),
        lambda m: jacfwd(m)(batch),
        lambda m: hessian(lambda x: loss(m, x))(x),
        lambda m: jacrev(jacfwd(lambda x: loss(m, x)))(x),
        lambda m: jacfwd(jacfwd(lambda x: loss(m, x)))(x),
        lambda m: vmap(m)(batch),
        lambda m: vmap(m, in_dims=1)(batch.T),
        lambda m: vmap(vmap(m))(some(2, 3, 16)),
        lambda m: vmap(grad(lambda x: loss(m, x)))(batch),
        lambda m: vmap(jacfwd(m), in_dims=1, out_dims=1)(batch.T),
        lambda m: vjp(m, batch)[1](some(6, 4))[0],
    ):
        torch.testing.assert_close(of(packed), of(dense), atol=1e-6, rtol=1e-5)


def test_embeddings_are_looked_up_in_batches(recwarn):
    table = nn.Embedding(10, 16)
    weights.pack(table, {"*": FOUR})
    indices = torch.arange(12).remainder(10).view(3, 4)
    for dim in (0, 1):
        found = vmap(table, in_dims=dim, out_dims=dim)(indices)
        assert torch.equal(found, table(indices))
    assert not [each for each in recwarn if "batching rule" in str(each.message)]


# Graphs.


def test_a_traced_model_computes_the_same_and_can_be_saved():
    _, packed = dense_and_packed(torch.float32)
    x, file = some(5, 16, dtype=torch.float32), io.BytesIO()
    torch.jit.save(torch.jit.trace(packed, (x,)), file)
    file.seek(0)
    assert torch.equal(torch.jit.load(file)(x), packed(x))


def test_a_model_compiled_before_it_is_packed_computes_with_packed_weights():
    torch._dynamo.reset()
    model = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), Experts())
    x = some(5, 16, dtype=torch.float32)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    dense = compiled(x)
    weights.pack(compiled, {"*": quantize.Affine(3, 16)})
    assert torch.equal(compiled(x), model(x))
    assert not torch.allclose(compiled(x), dense)
    compiled(x).sum().backward()
    assert model[0].bias.grad is not None
    weights.unpack(compiled)
    torch.testing.assert_close(compiled(x), model(x))
    assert isinstance(model[2].up, nn.Parameter)
    weights.straight_through(compiled, {"*": quantize.Affine(2, 16)})
    torch.testing.assert_close(compiled(x), model(x))


def test_a_model_with_packed_experts_is_exported_and_copied():
    _, packed = dense_and_packed(torch.float32)
    x = some(5, 16, dtype=torch.float32)
    program = torch.export.export(packed, (x,))
    torch.testing.assert_close(program.module()(x), packed(x))
    for other in (copy.deepcopy(packed), copy.copy(packed), pickle.loads(pickle.dumps(packed))):
        assert list(map(type, other)) == list(map(type, packed))
        assert torch.equal(other(x), packed(x))


# Experts.


def test_experts_stay_packed_and_decode_what_is_used(monkeypatch):
    dense, packed = dense_and_packed(torch.float32)
    experts, x = packed[2], some(5, 16, dtype=torch.float32)
    assert not list(experts.parameters())
    assert isinstance(experts, Experts)
    assert "up: bits=4, block=16" in repr(experts)
    decoded = []
    plain = weights.weight.PackedWeight.decoded
    monkeypatch.setattr(
        weights.weight.PackedWeight,
        "decoded",
        lambda self, dtype, row=None: decoded.append(row) or plain(self, dtype, row),
    )
    found = packed(x)
    assert decoded == [0, 0, 1, 1, 2, 2]
    assert torch.equal(found, dense(x)) or torch.allclose(found, dense(x), atol=1e-5)
    assert experts.up.shape == (3, 16, 32)
    assert len(decoded) == 6
    torch.testing.assert_close(torch.einsum("bi,eij->ebj", x, experts.up), x @ dense[2].up)
    with pytest.raises(ValueError, match="up of a PackedExperts is packed"):
        experts.up[1].zero_()
    with pytest.raises(TypeError, match="up of a PackedExperts is packed"):
        experts.up = nn.Parameter(torch.zeros(3, 16, 32))
    half = copy.deepcopy(packed).to(torch.bfloat16)
    assert half[2].up.dtype is torch.bfloat16
    assert half(x.bfloat16()).dtype is torch.bfloat16


def test_experts_are_saved_and_loaded(tmp_path):
    dense, packed = dense_and_packed(torch.float32)
    x = some(5, 16, dtype=torch.float32)
    weights.save(packed, tmp_path / "model.safetensors")
    loaded = weights.load(tmp_path / "model.safetensors", dense)
    assert torch.equal(loaded(x), packed(x))
    assert not list(loaded[2].parameters())
    other = dense_and_packed(torch.float32)[1]
    assert {"2.up", "2.down"} <= set(packed.state_dict())
    other.load_state_dict(packed.state_dict())
    weights.load(tmp_path / "model.safetensors", other)
    assert torch.equal(other(x), packed(x))
