"""Packing a model in memory: rules, reports, what is refused, and models of others."""

import copy

import numpy as np
import pytest
import torch
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire
import gradwire.torch.ddp
from gradwire import quantize
from gradwire.errors import NonFiniteError
from gradwire.torch import weights
from gradwire.torch.weights import PackedEmbedding, PackedLinear

FOUR, EIGHT = quantize.Affine(4, 32), quantize.Affine(8, 32)
ALL = {"*": FOUR}


class Tied(nn.Module):
    """A model of words whose last layer has the weight of its first."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 32)
        self.norm = nn.LayerNorm(32)
        self.head = nn.Linear(32, 50, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x):
        return self.head(self.norm(self.embed(x)))


def make() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Embedding(20, 32), nn.Linear(32, 64), nn.LayerNorm(64), nn.Linear(64, 10)
    )


def make_convolution() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8 * 36, 4))


def bytes_of(model: nn.Module) -> dict[str, bytes]:
    state = model.state_dict()
    return {
        name: each.reshape(-1).view(torch.uint8).numpy().tobytes() for name, each in state.items()
    }


def unchanged(model: nn.Module, before: dict[str, bytes]) -> bool:
    kinds = (PackedLinear, PackedEmbedding)
    return bytes_of(model) == before and not any(
        isinstance(each, kinds) for each in model.modules()
    )


# What is packed.


def test_linear_layers_and_embeddings_become_packed_ones_with_the_decoded_values():
    model = make()
    dense = copy.deepcopy(model)
    weights.pack(model, ALL)
    assert [type(each) for each in model] == [
        PackedEmbedding, PackedLinear, nn.LayerNorm, PackedLinear,
    ]  # fmt: skip
    for i in (0, 1, 3):
        packed = gradwire.weights.pack(dense[i].weight.detach().numpy(), FOUR)
        assert torch.equal(model[i].weight, torch.from_numpy(packed.unpack()))
        with torch.no_grad():
            dense[i].weight.copy_(model[i].weight)
    x = torch.arange(20)
    torch.testing.assert_close(model(x), dense(x))


def test_the_first_rule_that_matches_counts():
    model = make()
    weights.pack(model, {"1.*": EIGHT, "3.weight": None, "[13].*": quantize.Affine(2), "*": FOUR})
    assert model[1].packed.bits == 8
    assert type(model[3]) is nn.Linear
    assert model[0].packed.bits == 4


def test_what_has_one_dimension_is_left_unless_it_is_asked_for():
    model = make()
    weights.pack(model, ALL)
    assert model[1].bias.unique().numel() > 16
    model = make()
    report = weights.pack(model, ALL, min_ndim=1)
    assert not report.left
    assert model[1].bias.unique().numel() <= 32  # two blocks of 16 codes
    assert isinstance(model[1].bias, nn.Parameter)


@pytest.mark.parametrize(
    "module",
    [
        nn.Conv1d(4, 8, 4),
        nn.ConvTranspose2d(4, 8, 4),
        nn.LSTM(16, 16),
        nn.Bilinear(4, 4, 4),
        nn.MultiheadAttention(16, 2),
        nn.Embedding(8, 16, max_norm=1.0),
        nn.EmbeddingBag(8, 16),
        type("OwnLinear", (nn.Linear,), {})(16, 16),
    ],
    ids=lambda module: type(module).__name__,
)
def test_other_modules_hold_decoded_values(module):
    module = copy.deepcopy(module)
    kind, before = type(module), copy.deepcopy(module).state_dict()
    report = weights.pack(module, ALL)
    assert type(module) is kind
    for row in report.tensors:
        if row.held == "linear":  # one within
            continue
        assert row.held == "decoded"
        packed = gradwire.weights.pack(before[row.name].numpy(), FOUR)
        assert np.array_equal(module.state_dict()[row.name].numpy(), packed.unpack())


def test_integers_booleans_and_buffers_are_left():
    model = nn.Module()
    model.counts = nn.Parameter(torch.arange(64).view(2, 32), requires_grad=False)
    model.mask = nn.Parameter(torch.ones(2, 32, dtype=torch.bool), requires_grad=False)
    model.values = nn.Parameter(torch.randn(2, 32))
    model.register_buffer("buffer", torch.randn(2, 32))
    before = model.buffer.clone()
    report = weights.pack(model, ALL)
    assert [row.name for row in report.tensors] == ["values"]
    assert report.left == ("counts", "mask")
    assert torch.equal(model.buffer, before)


def test_tied_weights_are_packed_once_and_stay_tied():
    model = Tied()
    report = weights.pack(model, {"head*": EIGHT, "*": FOUR})
    assert [row.name for row in report.tensors] == ["embed.weight"]
    assert model.embed.packed is model.head.packed
    assert model.embed.packed.bits == 8
    assert not [
        name for name, _ in model.named_parameters() if "weight" in name and "norm" not in name
    ]
    copied = copy.deepcopy(model)
    held = [each._weights["weight"] for each in (copied.embed, copied.head, model.embed)]
    assert held[0] is held[1] is not held[2]


def test_a_weight_that_is_tied_to_something_else_is_decoded_and_stays_tied():
    model = nn.Module()
    model.linear, model.own = nn.Linear(32, 8), nn.Module()
    model.own.matrix = model.linear.weight
    (row,) = weights.pack(model, ALL).tensors
    assert row.held == "decoded"
    assert model.own.matrix is model.linear.weight
    assert type(model.linear) is nn.Linear


def test_hooks_bias_and_mode_stay():
    model, seen = make(), []
    model[1].register_forward_hook(lambda *_: seen.append(1))
    bias = model[1].bias
    weights.pack(model.eval(), ALL)
    model(torch.arange(3))
    assert seen == [1]
    assert model[1].bias is bias
    assert not model[1].training


# The report.


def test_the_report_has_names_shapes_bits_bytes_and_errors():
    model = make()
    dense = copy.deepcopy(model)
    report = weights.pack(model, {"1.weight": EIGHT, "0.weight": FOUR})
    embedding, linear = report.tensors
    assert (embedding.name, embedding.shape, embedding.bits) == ("0.weight", (20, 32), 4)
    assert (linear.name, linear.held, embedding.held) == ("1.weight", "linear", "embedding")
    assert linear.dense_nbytes == 4 * 32 * 64
    assert linear.nbytes == model[1].packed.nbytes
    for i, row in enumerate(report.tensors):
        lost = model[i].weight - dense[i].weight
        assert row.error == pytest.approx((lost.norm() / dense[i].weight.norm()).item(), rel=1e-3)
    assert report.dense_nbytes == sum(each.nbytes for each in dense.parameters())
    left = sum(each.nbytes for each in model.parameters())
    assert report.nbytes == left + linear.nbytes + embedding.nbytes
    entries = 32 * (20 + 64)
    assert report.bits_per_weight == pytest.approx(8 * (linear.nbytes + embedding.nbytes) / entries)


def test_the_report_tells_what_stays_in_memory():
    model = nn.Sequential(nn.Conv1d(16, 16, 16), nn.Linear(64, 64), nn.LSTM(64, 16))
    report = weights.pack(model, {"*": quantize.Affine(4, 16)})
    dense = sum(each.nbytes for each in model.parameters())
    packed = sum(row.nbytes for row in report.tensors)
    assert report.memory_nbytes == dense + packed
    told = f"in memory {(dense + packed) / 1e6:.2f} MB, because '0.weight' and 2 more stay decoded"
    assert told in str(report).splitlines()[-1]
    assert "in memory" not in str(weights.pack(nn.Linear(64, 64), {"*": quantize.Affine(4, 64)}))


def test_the_report_prints_as_a_table():
    *rows, last = str(weights.pack(make(), ALL)).splitlines()
    assert [row.split()[0] for row in rows] == ["name", "0.weight", "1.weight", "3.weight"]
    assert last.startswith("packed 3 of 7 tensors: ")
    assert "bits a weight; mean error" in last
    assert str(weights.pack(make(), {"*": None})).startswith("packed 0 of 7 tensors")


# What is refused, and leaves the model as it is.


class Own(torch.Tensor):
    pass


def with_last(weight: torch.Tensor) -> nn.Sequential:
    model = make()
    model[3].weight = nn.Parameter(weight)
    return model


def with_value(value: float) -> nn.Sequential:
    return with_last(torch.full((10, 64), 0.5).index_fill_(1, torch.tensor([7]), value))


RANGE, ZERO = ({"*": quantize.Affine(4, 32, fit)} for fit in ("range", "zero"))
REFUSED = {
    "no name": (
        make,
        {"*": FOUR, "haed*": EIGHT},
        {},
        ValueError,
        r"'haed\*'; there are '0.weight'",
    ),
    "bits": (make, {"*": 4}, {}, TypeError, "rules|names"),
    "nan": (lambda: with_value(float("nan")), ALL, {}, NonFiniteError, "3.weight"),
    "meta": (
        lambda: with_last(torch.empty(10, 64, device="meta")),
        *(ALL, {}, ValueError, r"'3\.weight' is on meta"),
    ),
    "sparse": (
        lambda: with_last(torch.eye(10, 64).to_sparse()),
        *(ALL, {}, TypeError, r"'3\.weight' must be dense, got layout torch.sparse_coo"),
    ),
    "own class": (
        lambda: with_last(torch.randn(10, 64).as_subclass(Own)),
        *(ALL, {}, TypeError, r"'3\.weight' is a Own"),
    ),
    "rows": (
        lambda: with_last(torch.randn(10, 67)),
        *(ALL, {}, ValueError, r"'3\.weight' has rows of 67, which no block"),
    ),
    "no entries": (
        lambda: with_last(torch.empty(0, 64)),
        *(ALL, {}, ValueError, r"'3\.weight' must have 1 to"),
    ),
    "more": (make, RANGE, {"more": (5,)}, ValueError, "bits|more"),
    "fit": (make, ZERO, {"more": (4,)}, ValueError, 'fit="range"'),
    "min_ndim": (make, ALL, {"min_ndim": -1}, ValueError, "min_ndim"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_is_named_and_leaves_the_model_as_it_is(case):
    made, rules, options, error, message = REFUSED[case]
    model = made()
    kinds, values = [type(each) for each in model.modules()], bytes_of(model[:3])
    with pytest.raises(error, match=message):
        weights.pack(model, rules, **options)
    assert bytes_of(model[:3]) == values
    assert [type(each) for each in model.modules()] == kinds


@pytest.mark.parametrize("make", [make, make_convolution])
def test_what_is_packed_already_is_named(make):
    model = make()
    weights.pack(model, {"0.weight": FOUR})
    before = bytes_of(model)
    with pytest.raises(ValueError, match=r"'0\.weight' is already packed: give it None"):
        weights.pack(model, ALL)
    assert bytes_of(model) == before


def test_a_decoded_weight_that_was_changed_can_be_packed_again():
    model = make_convolution()
    weights.pack(model, {"0.weight": FOUR})
    with torch.no_grad():
        model[0].weight.mul_(3)
    assert len(weights.pack(model, {"0.weight": EIGHT}).tensors) == 1


# Training.


@pytest.fixture
def one_rank(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore:There is only one rank")
@pytest.mark.usefixtures("one_rank")
def test_compressed_gradients_of_a_packed_model_are_exchanged():
    model = make()
    weights.pack(model, ALL)
    wrapped = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    gradwire.torch.ddp.attach(wrapped, gradwire.topk(0.5), optimizer=optimizer)
    x, losses = torch.arange(20), []
    for _ in range(10):
        optimizer.zero_grad()
        losses.append(nn.functional.cross_entropy(wrapped(x), x % 10))
        losses[-1].backward()
        optimizer.step()
    assert losses[-1] < losses[0]


@pytest.mark.usefixtures("one_rank")
def test_a_wrapped_model_is_a_type_error():
    model = make()
    before = bytes_of(model)
    wrapped = DistributedDataParallel(model)
    for each in (wrapped, nn.Sequential(wrapped)):
        with pytest.raises(TypeError, match="unwrapped model: pack it, then wrap it"):
            weights.pack(each, ALL)
    assert unchanged(model, before)
