"""Linear layers and embeddings that read packed weights."""

import copy
import io
import pickle

import numpy as np
import pytest
import torch
from torch import nn

from gradwire import quantize
from gradwire.torch import weights
from gradwire.torch.weights import PackedEmbedding, PackedLinear
from gradwire.weights import Packed, pack

ROWS = (1, 3, 16, 17, 100)
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
OUT, IN = 150, 96


def packed(rows: int = OUT, cols: int = IN, bits: int = 4, block: int = 32):
    values = np.random.default_rng(rows).normal(size=(rows, cols)).astype(np.float32)
    return pack(values, quantize.Affine(bits, block))


def linear(bits=4, activations="float32"):
    bias = torch.linspace(-1, 1, OUT)
    return PackedLinear(packed(bits=bits), bias, activations=activations)


def dense_of(layer: PackedLinear) -> nn.Linear:
    """A plain layer with the decoded weight."""
    dense = nn.Linear(layer.in_features, layer.out_features)
    with torch.no_grad():
        dense.weight.copy_(layer.weight)
        dense.bias.copy_(layer.bias)
    return dense


def some(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def error_of(y, wanted):
    return ((y.double() - wanted).norm() / wanted.norm()).item()


# Products.


@pytest.mark.parametrize(
    ("bits", "dtype"), [*((n, torch.float32) for n in range(1, 9)), *((4, d) for d in DTYPES[1:])]
)
@pytest.mark.parametrize("rows", ROWS)
def test_a_layer_gives_x_times_its_decoded_weight_and_the_bias(rows, bits, dtype):
    layer, x = linear(bits), some(rows, IN, dtype=dtype)
    y, weight = layer(x), layer.weight
    if dtype is torch.bfloat16 and rows > 16:
        weight = weight.to(dtype)  # as is documented
    assert y.dtype is dtype
    wanted = x.double() @ weight.double().T + layer.bias.double()
    # Half a unit of the last place of y, of the product and of the sum; and what the sums lose.
    most = 1e-14 if dtype is torch.float64 else 1e-5
    assert error_of(y, wanted) < most + (0 if dtype.itemsize > 2 else torch.finfo(dtype).eps)


@pytest.mark.parametrize("bits", [3, 4, 8])
@pytest.mark.parametrize("block", [1, 17, 64, 1000, None])
def test_blocks_need_not_end_with_rows(block, bits):
    """No writer makes such files, and a reader takes them."""
    values = np.random.default_rng(0).normal(size=OUT * IN).astype(np.float32)
    flat = pack(values, quantize.Affine(bits, block))
    layer, weight = PackedLinear(Packed(flat.frame, (OUT, IN))), flat.unpack().reshape(OUT, IN)
    assert torch.equal(layer.weight, torch.from_numpy(weight))
    for rows in (3, 17):
        x = some(rows, IN)
        assert error_of(layer(x), x.double() @ layer.weight.double().T) < 1e-5


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("rows", [1, 3, 16])
def test_int8_activations_are_close(rows, bits):
    exact, rounded = linear(bits), linear(bits, "int8")
    x = some(rows, IN)
    y = rounded(x)
    assert error_of(y, exact(x).double()) < 0.02
    assert not torch.equal(y, exact(x))


@pytest.mark.parametrize("activations", ["float32", "int8"])
@pytest.mark.parametrize("rows", [3, 17])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_nan_goes_through_as_in_any_layer(rows, activations, bad):
    layer, x = linear(activations=activations), some(rows, IN)
    x[1, 5] = bad
    y = layer(x)
    assert not y[1].isfinite().any()
    assert y[[0, 2]].isfinite().all()


@pytest.mark.parametrize("shape", [(0, IN), (2, 0, IN)])
def test_no_rows_give_no_rows(shape):
    layer = linear()
    x = torch.empty(shape, requires_grad=True)
    y = layer(x)
    assert y.shape == (*shape[:-1], OUT)
    y.sum().backward()
    assert x.grad.shape == shape
    assert torch.equal(layer.bias.grad, torch.zeros(OUT))


@pytest.mark.parametrize("rows", [3, 17])
def test_x_may_lie_in_memory_in_any_way(rows):
    layer = linear()
    x = some(IN, rows).T
    wide = some(rows, 2 * IN)[:, ::2]
    negative = torch.complex(x, x).conj().imag
    assert negative.is_neg()
    for each in (x, wide, some(1, IN).expand(rows, IN), negative):
        assert not each.is_contiguous()
        assert torch.equal(layer(each), layer(each.resolve_neg().contiguous()))


@pytest.mark.parametrize("default", [torch.bfloat16, torch.float16, torch.float64, "meta"])
@pytest.mark.parametrize("rows", ROWS)
def test_the_defaults_of_torch_change_nothing(rows, default):
    layer, table = linear(), PackedEmbedding(packed())
    given = [some(rows, IN, dtype=dtype).requires_grad_() for dtype in DTYPES]
    pull, indices = some(rows, OUT), torch.arange(rows)

    def run() -> list[torch.Tensor]:
        found = [layer(x) for x in given]
        both = zip(given, found, strict=True)
        gradients = [torch.autograd.grad((y * pull).sum(), x)[0] for x, y in both]
        return [*found, *gradients, table(indices), layer.weight.clone(), layer.weight[3].clone()]

    expected = run()
    (torch.set_default_device if default == "meta" else torch.set_default_dtype)(default)
    try:
        found = run()
    finally:
        torch.set_default_device(None)
        torch.set_default_dtype(torch.float32)
    for ours, wanted in zip(found, expected, strict=True):
        assert ours.dtype is wanted.dtype
        assert torch.equal(ours, wanted)


# What a layer refuses.


def test_what_a_layer_cannot_take_is_named():
    with pytest.raises(TypeError, match=r"must have dtype .* got torch\.int64"):
        linear()(torch.ones(2, IN, dtype=torch.int64))
    for shape in [(2, IN + 1), (IN, 2), (), (0,)]:
        with pytest.raises(ValueError, match=rf"\(\.\.\., {IN}\), got"):
            linear()(torch.ones(shape))
    with pytest.raises(ValueError, match="x is on meta and the packed weights are on cpu"):
        linear()(torch.ones(2, IN, device="meta"))
    for kind in (PackedLinear, PackedEmbedding):
        with pytest.raises(ValueError, match="too many values"):
            kind(pack(np.ones((2, 3, 16), np.float32), quantize.Affine(4, 16)))
    with pytest.raises(ValueError, match=rf"bias must have shape \({OUT},\), got \(3,\)"):
        PackedLinear(packed(), torch.ones(3))
    with pytest.raises(ValueError, match="activations must be"):
        linear(activations="int4")
    layer = linear()
    layer.activations = "int4"
    with pytest.raises(ValueError, match="activations must be"):
        layer(some(3, IN))


# Gradients.


@pytest.mark.parametrize("rows", ROWS)
def test_gradients_of_x_and_bias_are_those_of_a_dense_layer(rows):
    layer = linear()
    dense = dense_of(layer)
    ours, theirs = (some(rows, IN).requires_grad_() for _ in range(2))
    pull = some(rows, OUT, seed=2)
    (layer(ours) * pull).sum().backward()
    (dense(theirs) * pull).sum().backward()
    assert error_of(ours.grad, theirs.grad.double()) < 1e-5
    torch.testing.assert_close(layer.bias.grad, dense.bias.grad)


# What code expects of a module.


@pytest.mark.parametrize("make", [linear, lambda: PackedEmbedding(packed())])
def test_a_value_for_the_weight_is_a_type_error(make):
    module = make()
    before = module.weight
    for value in (torch.zeros(OUT, IN), nn.Parameter(torch.zeros(OUT, IN)), None):
        with pytest.raises(TypeError, match="packed"):
            module.weight = value
    with pytest.raises(TypeError, match="packed"):
        module.reset_parameters()
    assert torch.equal(module.weight, before)


def test_packed_weights_are_no_parameters():
    model = nn.Sequential(PackedEmbedding(packed()), linear())
    assert [name for name, _ in model.named_parameters()] == ["1.bias"]
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=1.0)
    before = [model[0].weight, model[1].weight, model[1].bias.detach().clone()]
    model(torch.arange(3)).sum().backward()
    optimizer.step()
    assert torch.equal(model[0].weight, before[0])
    assert torch.equal(model[1].weight, before[1])
    assert not torch.equal(model[1].bias, before[2])


def test_converting_a_module_leaves_the_bytes_as_they_are():
    layer, x = PackedLinear(packed(), torch.ones(OUT)), some(3, IN)
    y = layer(x)
    bytes_before = layer.packed.frame
    for convert in (nn.Module.half, nn.Module.bfloat16, nn.Module.double, nn.Module.float):
        convert(layer)
        assert layer.packed.frame is bytes_before
        assert layer.weight.dtype is layer.bias.dtype
    assert torch.equal(layer(x), y)
    assert layer.to(torch.float16).weight.dtype is torch.float16
    assert layer.half()(x.half()).dtype is torch.float16


def test_a_module_can_move_to_another_device_and_back():
    layer, x = PackedLinear(packed()), some(3, IN)
    y = layer(x)
    layer.to("meta")
    assert layer.weight.is_meta
    assert layer(x.to("meta")).shape == (3, OUT)
    with pytest.raises(NotImplementedError, match="meta"):  # as in any layer
        layer.to("cpu")
    assert torch.equal(layer.to_empty(device="cpu")(x), y)


def pickled(module):
    return pickle.loads(pickle.dumps(module))


def saved(module):
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("through", [pickled, saved, copy.copy, copy.deepcopy])
def test_copies_compute_the_same(through):
    model = nn.Sequential(PackedEmbedding(packed(), padding_idx=2), linear(activations="int8"))
    copied, x = through(model.half()), torch.arange(9).view(3, 3)
    assert torch.equal(copied(x), model(x))
    assert copied[0].padding_idx == 2
    assert copied[1].activations == "int8"
    assert copied[1].weight.dtype is torch.float16


def test_a_state_dict_holds_bytes_and_loads():
    values = np.random.default_rng(0).normal(size=(8, 32)).astype(np.float32)
    nested = PackedLinear(pack(values, quantize.Affine(4, 32, "range"), more=(4,)))
    state = nested.state_dict()
    assert list(state) == ["weight", "weight.more.0"]
    assert state["weight"].numpy().tobytes() == bytes(nested.packed.frame)
    other = PackedLinear(pack(0 * values, quantize.Affine(2, 32)))
    other.load_state_dict(state)
    assert torch.equal(other.weight, nested.weight)
    assert (other.packed.first_bits, other.packed.bits) == (4, 8)
    other.load_state_dict(PackedLinear(pack(values, quantize.Affine(2, 32))).state_dict())
    assert other.packed.bits == 2


SPOILED = {
    "dense": lambda weight: torch.zeros(OUT, IN),
    "flipped": lambda weight: torch.cat([weight[:-1], weight[-1:] ^ 1]),
    "short": lambda weight: weight[:20],
    "another shape": lambda weight: PackedLinear(packed(OUT, 64)).state_dict()["weight"],
}


@pytest.mark.parametrize("kind", [*SPOILED, "missing"])
def test_a_state_dict_of_something_else_is_refused_and_changes_no_weight(kind):
    layer = linear()
    before, state = layer.weight, linear(8).state_dict()
    weight = state.pop("weight")
    if kind in SPOILED:
        state["weight"] = SPOILED[kind](weight)
    with pytest.raises(RuntimeError, match="weight"):
        layer.load_state_dict(state)
    assert torch.equal(layer.weight, before)


def test_a_state_dict_without_the_weight_loads_where_that_is_allowed():
    layer = linear()
    before = layer.weight
    missing, unexpected = layer.load_state_dict({"bias": torch.zeros(OUT)}, strict=False)
    assert not unexpected
    assert torch.equal(layer.weight, before)
    assert not layer.bias.any()
    assert missing in ([], ["weight"])


def test_autocast_multiplies_in_its_dtype():
    layer, x = linear(), some(3, IN)
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(x)
        long = layer(some(40, IN))
        double = layer(x.double())
    assert y.dtype is long.dtype is torch.bfloat16
    assert double.dtype is torch.float64
    assert torch.equal(y, layer(x.bfloat16()))


# Embeddings.


@pytest.mark.parametrize("bits", range(1, 9))
@pytest.mark.parametrize("shape", [(), (5,), (2, 3), (0,)])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_an_embedding_decodes_the_rows_it_looks_up(shape, bits, dtype):
    module = PackedEmbedding(packed(bits=bits))
    indices = torch.randint(OUT, shape, generator=torch.Generator().manual_seed(3)).to(dtype)
    rows = module(indices)
    assert rows.shape == (*shape, IN)
    assert torch.equal(rows, module.weight[indices.long()])


def test_an_embedding_takes_indices_in_any_order_of_memory():
    module, ids = PackedEmbedding(packed()), torch.arange(12).view(3, 4)
    slices = (ids.T, ids[:, -1:], ids[:, ::2], ids[1, ::2], ids[:, 1], ids[0, 0].expand(2, 3))
    for indices in (*slices, ids[:, :0], ids.flip(1)[:, 1:], ids[None, :, None, ::3]):
        assert torch.equal(module(indices), module.weight[indices.long()])


def test_an_embedding_keeps_its_padding_index():
    plain = nn.Embedding(OUT, IN, padding_idx=-1)
    weights.pack(plain, {"*": quantize.Affine(4, 32)})
    assert isinstance(plain, PackedEmbedding)
    assert plain.padding_idx == OUT - 1
    assert f"padding_idx={OUT - 1}" in repr(plain)
    assert not plain(torch.tensor([OUT - 1])).any()


def test_indices_that_are_none_are_named():
    for index in (-1, OUT, 2**40):
        with pytest.raises(IndexError, match=str(index)):
            PackedEmbedding(packed())(torch.tensor([0, index]))
    for dtype in (torch.float32, torch.bool, torch.uint8):
        with pytest.raises(TypeError, match="indices must have dtype"):
            PackedEmbedding(packed())(torch.ones(3, dtype=dtype))
    with pytest.raises(ValueError, match="indices are on meta"):
        PackedEmbedding(packed())(torch.arange(3, device="meta"))


# Graphs.


def model_for_graphs() -> nn.Module:
    return nn.Sequential(PackedEmbedding(packed()), linear(), nn.ReLU())


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_packed_model_compiles_to_one_graph(dynamic):
    torch._dynamo.reset()
    model = model_for_graphs()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for rows in (2, 16, 17, 50):
        x = torch.arange(rows)
        y = compiled(x)
        assert torch.equal(y, model(x))
        model[1].bias.grad = None
        y.sum().backward()
        ours, model[1].bias.grad = model[1].bias.grad, None
        model(x).sum().backward()
        assert torch.equal(ours, model[1].bias.grad)


def test_a_packed_model_is_exported_with_its_operators():
    model, x = model_for_graphs(), torch.arange(5)
    rows = torch.export.Dim("rows", min=2, max=100)
    program = torch.export.export(model, (x,), dynamic_shapes=({0: rows},))
    called = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
    assert {"gradwire.packed_rows.default", "gradwire.packed_linear.default"} <= called
    for count in (5, 30):
        given = torch.arange(count)
        assert torch.equal(program.module()(given), model(given))


@pytest.mark.parametrize("rows", [3, 20])
def test_operators_keep_what_they_promise_to_torch(rows):
    layer = PackedLinear(packed())
    held, operators = layer._weights["weight"], torch.ops.gradwire
    of = (OUT, IN, list(held.grid))
    for kind, transposed in (("float32", False), ("int8", False), ("float32", True)):
        x = some(rows, OUT if transposed else IN).requires_grad_()
        torch.library.opcheck(operators.packed_linear, (x, held.frame, *of, kind, transposed))
    for indices in (None, torch.arange(rows)):
        for dtype in (torch.float32, torch.bfloat16):
            torch.library.opcheck(operators.packed_rows, (held.frame, indices, *of, dtype))


@pytest.mark.parametrize("bits", range(1, 9))
def test_what_other_devices_decode_is_what_the_core_decodes(bits):
    layer = PackedLinear(packed(bits=bits))
    other = weights.modules.ops.decoded(
        layer._weights["weight"].frame, OUT, IN, layer._weights["weight"].grid, torch.float32
    )
    assert torch.equal(other, layer.weight)


# Backends.


def test_the_backend_of_a_device_is_told():
    assert weights.backend("cpu").name == "cpu"
    assert weights.backend("cuda:1").name == "decode"
    assert "cuda" in weights.backend(torch.device("cuda")).reason
    with pytest.raises(ValueError, match="meta"):
        weights.backend("meta")
