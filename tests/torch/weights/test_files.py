"""Models in files: saved from packed bytes, loaded all or not at all."""

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import gradwire
from gradwire import quantize
from gradwire.cli import main
from gradwire.errors import CorruptFileError
from gradwire.torch import weights
from gradwire.torch.weights import PackedEmbedding, PackedLinear
from tests.weights.containers import taken_apart

FOUR, EIGHT = quantize.Affine(4, 32), quantize.Affine(8, 32)
ALL = {"*": FOUR}
NESTED = {"*": quantize.Affine(4, 32, "range")}


class Model(nn.Module):
    """Something of everything: packed, decoded, tied, dense and a buffer."""

    def __init__(self, seed: int = 1) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embed = nn.Embedding(50, 32)
        self.convolution = nn.Conv1d(32, 32, 3, padding=1)
        self.norm = nn.BatchNorm1d(32)
        self.hidden = nn.Linear(32, 32)
        self.head = nn.Linear(32, 50, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("scratch", torch.zeros(3), persistent=False)

    def forward(self, x):
        y = self.norm(self.convolution(self.embed(x).transpose(1, 2)))
        return self.head(self.hidden(y.transpose(1, 2)))


X = torch.arange(12).view(2, 6)


def packed_model(rules=ALL, more=()) -> Model:
    model = Model(0).eval()
    weights.pack(model, rules, more)
    return model


def snapshot(model: nn.Module) -> tuple[object, ...]:
    """Everything that loading could change."""
    state = model.state_dict()
    values = [
        None if each.is_meta else each.contiguous().reshape(-1).view(torch.uint8).tolist()
        for each in state.values()
    ]
    return list(state), values, [type(each) for each in model.modules()]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.safetensors"


def flip(path: Path, name: str, at: int = -1) -> None:
    """Flip a bit of a tensor's bytes."""
    data = bytearray(path.read_bytes())
    header, body = taken_apart(data)
    begin, end = header[name]["data_offsets"]
    data[len(data) - len(body) + (begin + at if at >= 0 else end + at)] ^= 1
    path.write_bytes(data)


# Round trips.


def test_a_loaded_model_gives_the_same_results(path):
    model = packed_model()
    weights.save(torch.compile(model), path)
    loaded = Model()
    assert weights.load(path, loaded) is loaded
    before = path.read_bytes()
    weights.save(weights.load(path, torch.compile(Model())), path)
    assert path.read_bytes() == before
    assert isinstance(loaded.hidden, PackedLinear)
    assert isinstance(loaded.embed, PackedEmbedding)
    assert type(loaded.convolution) is nn.Conv1d
    assert torch.equal(loaded.eval()(X), model(X))
    assert snapshot(loaded) == snapshot(model)


def test_packed_weights_lie_in_the_pages_of_the_file(path):
    weights.save(packed_model(), path)
    loaded = weights.load(path, Model())
    with gradwire.weights.open(path) as file:
        assert isinstance(loaded.hidden.packed.frame.obj, type(file["hidden.weight"].frame.obj))
        assert {"embed.weight", "head.weight"} & set(file) == {"embed.weight"}
    assert loaded.embed.packed is loaded.head.packed  # tied, and written once
    path.unlink()  # the pages stay
    assert torch.equal(loaded.hidden.weight, packed_model().hidden.weight)


def test_a_file_may_have_both_names_of_tied_weights_if_they_agree(path):
    tensor = torch.randn(50, 32)
    model = nn.ModuleDict({"a": nn.Linear(32, 50, bias=False), "b": nn.Linear(32, 50, bias=False)})
    model["b"].weight = model["a"].weight
    save_file({"a.weight": tensor, "b.weight": tensor.clone()}, path)
    weights.load(path, model)
    assert torch.equal(model["a"].weight, tensor)
    assert model["a"].weight is model["b"].weight
    save_file({"a.weight": tensor, "b.weight": tensor + 1}, path)
    with pytest.raises(ValueError, match=r"'a\.weight' and 'b\.weight' are tied in the model"):
        weights.load(path, model)


@pytest.mark.filterwarnings("ignore:.*is rounded to float32")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_models_of_other_dtypes_come_back(path, dtype):
    model = Model(0).to(dtype).eval()
    weights.pack(model, ALL)
    weights.save(model, path)
    loaded = weights.load(path, Model().to(dtype)).eval()
    assert loaded(X).dtype is loaded.hidden.weight.dtype is dtype
    assert torch.equal(loaded(X), model(X))


def test_a_model_on_meta_gets_the_values_of_the_file(path):
    model = packed_model()
    weights.save(model, path)
    with torch.device("meta"):
        loaded = Model()
    loaded.scratch = torch.zeros(3)  # never saved
    weights.load(path, loaded)
    assert not any(each.is_meta for each in loaded.state_dict().values())
    assert torch.equal(loaded.eval()(X), model(X))
    assert isinstance(loaded.hidden.bias, nn.Parameter)


def test_a_buffer_on_meta_that_no_file_has_is_listed(path):
    weights.save(packed_model(), path)
    with torch.device("meta"):
        loaded = Model()
    with pytest.raises(ValueError, match="'scratch' is on meta and not saved"):
        weights.load(path, loaded)
    assert loaded.hidden.weight.is_meta


def test_a_packed_model_takes_another_file(path):
    weights.save(packed_model({"*": EIGHT}), path)
    model = packed_model({"*": quantize.Affine(2, 32)})
    weights.load(path, model)
    assert model.hidden.packed.bits == model.embed.packed.bits == 8
    assert torch.equal(model(X), packed_model({"*": EIGHT})(X))


# Convolutions, and other weights that are decoded.


@pytest.mark.parametrize("copied", [False, True])
def test_a_decoded_weight_that_was_changed_is_saved_dense(path, copied):
    model = packed_model()
    if copied:
        model = copy.deepcopy(model)
    with torch.no_grad():
        model.convolution.weight[0, 0, 0] += 1
    weights.save(model, path)
    with gradwire.weights.open(path) as file:
        assert isinstance(file["convolution.weight"], np.ndarray)
        assert isinstance(file["hidden.weight"], gradwire.weights.Packed)
    assert torch.equal(weights.load(path, Model()).convolution.weight, model.convolution.weight)


# Further bits.


def test_the_first_bits_of_a_file_are_what_packing_at_them_gives(path):
    weights.save(packed_model(NESTED, more=(4,)), path)
    four = weights.load(path, Model(), bits=4)
    alone = packed_model(NESTED)
    assert bytes(four.hidden.packed.frame) == bytes(alone.hidden.packed.frame)
    assert torch.equal(four.convolution.weight, alone.convolution.weight)
    assert torch.equal(four.eval()(X), alone(X))


@pytest.mark.parametrize("name", ["hidden.weight", "embed.weight", "convolution.weight"])
def test_the_first_bits_load_although_further_ones_are_corrupt(path, name):
    weights.save(packed_model(NESTED, more=(4,)), path)
    flip(path, f"{name}.more.0")
    model = Model()
    before = snapshot(model)
    with pytest.raises(CorruptFileError, match=f"'{name}'.* further codes"):
        weights.load(path, model)
    assert snapshot(model) == before
    weights.load(path, model, bits=4)
    assert torch.equal(model.eval()(X), packed_model(NESTED)(X))


@pytest.mark.parametrize("bits", [0, 2, 5, 9, True, 4.5])
def test_bits_that_no_tensor_holds_change_nothing(path, bits):
    weights.save(packed_model(NESTED, more=(4,)), path)
    model = Model()
    before = snapshot(model)
    with pytest.raises(ValueError, match=r"bits must be one of \[4, 8\], which the file holds"):
        weights.load(path, model, bits=bits)
    assert snapshot(model) == before


def test_tensors_without_further_bits_are_loaded_as_they_are(path):
    model = Model(0)
    weights.pack(model, {"hidden.*": EIGHT})
    weights.pack(model, {"hidden.*": None, **NESTED}, more=(4,))
    weights.save(model, path)
    loaded = weights.load(path, Model(), bits=4)
    assert (loaded.hidden.packed.bits, loaded.embed.packed.bits) == (8, 4)


def test_a_tensor_whose_further_bits_are_other_ones_is_named(path):
    model = Model(0)
    weights.pack(model, {"hidden.*": quantize.Affine(2, 32, "range")}, more=(1,))
    weights.pack(model, {"hidden.*": None, **NESTED}, more=(4,))
    weights.save(model, path)
    with pytest.raises(ValueError, match=r"'hidden\.weight': bits must be 2 and 3"):
        weights.load(path, Model(), bits=4)


# What is refused, and leaves the model as it is.


def test_all_differences_are_listed_and_nothing_is_changed(path):
    weights.save(packed_model(), path)
    model = Model()
    model.hidden = nn.Linear(32, 33)
    model.norm = nn.BatchNorm1d(32).half()
    model.more = nn.Linear(2, 2)
    del model.convolution
    before = snapshot(model)
    with pytest.raises(ValueError, match="does not fit the model, which is unchanged") as caught:
        weights.load(path, model)
    for text in (
        "'convolution.weight' is in the file only",
        "'convolution.bias' is in the file only",
        "'more.weight' is in the model only",
        "'hidden.weight' has shape (33, 32) in the model, and (32, 32) in the file",
        "'hidden.bias' has shape (33,) in the model, and (32,) in the file",
        "'norm.weight' is float16 in the model, and float32 in the file",
    ):
        assert text in str(caught.value)
    assert snapshot(model) == before


def test_a_packed_model_refuses_dense_weights(path):
    weights.save(Model(0), path)
    model = packed_model()
    before = snapshot(model)
    with pytest.raises(ValueError, match=r"'hidden\.weight' is packed in the model, but dense"):
        weights.load(path, model)
    assert snapshot(model) == before


@pytest.mark.parametrize("name", ["hidden.weight", "embed.weight", "convolution.weight"])
@pytest.mark.parametrize("at", [0, 20, 50, 60, -1])
def test_a_corrupt_tensor_is_named_and_nothing_is_changed(path, name, at):
    weights.save(packed_model(), path)
    flip(path, name, at)
    model = Model()
    before = snapshot(model)
    with pytest.raises(CorruptFileError, match=name):
        weights.load(path, model)
    assert snapshot(model) == before


class WithExtraState(nn.Module):
    def get_extra_state(self) -> int:
        return 1


def sparse() -> nn.Module:
    model = nn.Linear(4, 4)
    model.weight = nn.Parameter(torch.eye(4).to_sparse())
    return model


@pytest.mark.parametrize(
    ("model", "kind", "text"),
    [
        (nn.Linear(4, 4, device="meta"), ValueError, "'weight' is on meta"),
        (nn.Sequential(WithExtraState()), TypeError, "'0' has extra state"),
        (sparse(), TypeError, "'weight' must be dense"),
    ],
    ids=["meta", "extra state", "sparse"],
)
def test_what_no_file_holds_leaves_the_old_file(path, model, kind, text):
    path.write_bytes(b"before")
    with pytest.raises(kind, match=text):
        weights.save(model, path)
    assert path.read_bytes() == b"before"
    assert list(path.parent.iterdir()) == [path]


# Models of transformers.


def llama(seed, tied=False):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=1,
        num_attention_heads=2, max_position_embeddings=32, bos_token_id=0, eos_token_id=63,
        tie_word_embeddings=tied,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


@pytest.mark.parametrize("more", [(), (4,)])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("size", ["20KB", "5GB"])
def test_what_save_pretrained_wrote_of_a_packed_model_is_loaded(size, tied, more, tmp_path):
    model, words = llama(0, tied), torch.tensor([[1, 2, 3]])
    weights.pack(model, NESTED, more)
    model.save_pretrained(tmp_path, max_shard_size=size)
    loaded = weights.load(tmp_path, llama(1, tied))
    assert isinstance(loaded.lm_head, PackedLinear)
    assert torch.equal(loaded(words).logits, model(words).logits)
    # A state dict is recognized alike, and a packed model takes it too.
    save_file({name: each.clone() for name, each in model.state_dict().items()}, tmp_path / "a")
    other = llama(1, tied)
    weights.pack(other, ALL)
    weights.load(tmp_path / "a", other)
    assert torch.equal(other(words).logits, model(words).logits)


@pytest.mark.parametrize("part", ["", ".more.0"])
@pytest.mark.parametrize("at", [8, 70, -1])
def test_a_corrupt_frame_of_a_state_dict_is_named(part, at, path):
    saved = packed_model(NESTED, more=(4,))
    save_file({name: each.clone() for name, each in saved.state_dict().items()}, path)
    flip(path, f"hidden.weight{part}", at)
    model = Model()
    before = snapshot(model)
    with pytest.raises(CorruptFileError, match=r"'hidden\.weight'"):
        weights.load(path, model)
    assert snapshot(model) == before


def test_a_sharded_checkpoint_goes_through_the_commands_and_transformers(tmp_path):
    transformers = pytest.importorskip("transformers")
    model, words = llama(0), torch.tensor([[1, 2, 3]])
    source, packed, plain = (tmp_path / name for name in ("source", "packed", "plain"))
    model.save_pretrained(source, max_shard_size="20KB")
    four = ["--max-shard-size", "15KB", "--rules", "lm_head.weight=4"]
    for options, exact in ((["--lossless"], True), (four, False)):
        assert main(["pack", str(source), str(packed), *options]) == 0
        assert main(["unpack", str(packed), str(plain), *([] if exact else options[:2])]) == 0
        (plain / "config.json").write_bytes((source / "config.json").read_bytes())
        found = transformers.LlamaForCausalLM.from_pretrained(plain).eval()
        loaded = weights.load(packed, llama(1))
        for each in (found, loaded):
            assert torch.equal(each(words).logits, model(words).logits) is exact
        assert len(list(plain.glob("*.safetensors"))) > 1
    assert isinstance(loaded.lm_head, PackedLinear)


def test_one_shard_of_several_is_called_so(tmp_path):
    llama(0).save_pretrained(tmp_path, max_shard_size="20KB")
    with pytest.raises(ValueError, match="it is one shard of several: load their folder"):
        weights.load(next(tmp_path.glob("model-00001-of-*")), llama(1))
