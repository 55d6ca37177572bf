"""Loading is all of it or nothing, whatever a model's tensors are: dtypes, layouts, failures."""

import os

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from gradwire import quantize
from gradwire import weights as plain
from gradwire.torch import weights
from gradwire.torch.weights.files import DTYPES

HELD = sorted(DTYPES.items())
NOT_HELD = [torch.complex128, torch.complex32]


def values_of(dtype, shape, seed=0):
    """Random bits of a dtype, which are often NaN; of booleans, zeros and ones."""
    most = 2 if dtype is torch.bool else 256
    generator = torch.Generator().manual_seed(seed)
    shape = (*shape[:-1], shape[-1] * dtype.itemsize)
    return torch.randint(0, most, shape, dtype=torch.uint8, generator=generator).view(dtype)


def bits(tensor):
    dense = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    return [tensor.dtype, tuple(tensor.shape), dense.view(torch.uint8).tolist()]


class Model(nn.Module):
    """A tensor between others, which must not change if it cannot be written."""

    def __init__(self, value, kind=None, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.first = nn.Linear(32, 32)
        if isinstance(value, nn.Parameter):
            self.tensor = value
        else:
            self.register_buffer("tensor", value)
        self.last = nn.Linear(4, 4)


def state(model):
    every = [*model.named_parameters(), *model.named_buffers()]
    return [bits(each) for name, each in every if name != "tensor"]


@pytest.mark.parametrize("holder", ["buffer", "parameter"])
@pytest.mark.parametrize(("name", "dtype"), HELD, ids=[name for name, _ in HELD])
def test_every_dtype_is_saved_and_loaded_bit_for_bit(name, dtype, holder, tmp_path):
    def model(seed):
        value = values_of(dtype, (6, 4), seed)
        return Model(nn.Parameter(value, False) if holder == "parameter" else value, seed=seed)

    saved, loaded, path = model(0), model(1), tmp_path / "a"
    for save, load in (
        (weights.save, weights.load),
        (weights.save_checkpoint, weights.load_checkpoint),
    ):
        (save(saved, path) if save is weights.save else save(path, saved)) or load(path, loaded)
        assert bits(loaded.tensor) == bits(saved.tensor)
        assert state(loaded) == state(saved)
        loaded = model(1)
    weights.save(saved, path)
    with plain.open(path) as file:
        assert file.kind("tensor")[0] == name
    with torch.device("meta"):
        empty = model(1).to("meta")
    weights.load(path, empty)
    assert bits(empty.tensor) == bits(saved.tensor)
    # What the safetensors library writes and reads is the same.
    assert bits(load_file(path)["tensor"]) == bits(saved.tensor)
    save_file({key: each.contiguous() for key, each in saved.state_dict().items()}, path)
    weights.load(path, loaded)
    assert bits(loaded.tensor) == bits(saved.tensor)


@pytest.mark.parametrize("dtype", NOT_HELD)
def test_a_dtype_that_files_lack_is_named(dtype, tmp_path):
    with pytest.raises(TypeError, match=f"'tensor' is of {dtype}, which a safetensors file cannot"):
        weights.save(Model(torch.zeros(3, dtype=dtype)), tmp_path / "a")
    assert not [*tmp_path.iterdir()]


def conjugate(seed):
    return values_of(torch.complex64, (4, 6), seed).conj()


LAYOUTS = {
    "transposed": lambda seed: values_of(torch.float32, (6, 4), seed).T,
    "channels_last": lambda seed: values_of(torch.float32, (2, 3, 4, 5), seed).to(
        memory_format=torch.channels_last
    ),
    "strided": lambda seed: values_of(torch.float16, (8, 6), seed)[::2, 1::2],
    "conj": conjugate,
    "neg": lambda seed: conjugate(seed).imag,
    "conj of conj": lambda seed: conjugate(seed).T.conj(),
    "a scalar": lambda seed: torch.tensor(float(seed)),
    "empty": lambda seed: torch.zeros(3, 0, 2),
    "one entry, expanded": lambda seed: torch.full((1,), float(seed)).expand(1, 1),
    "a view of a larger one": lambda seed: values_of(torch.int64, (10, 3), seed)[4:7],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_is_saved_and_loaded(layout, tmp_path):
    saved, loaded = Model(LAYOUTS[layout](0)), Model(LAYOUTS[layout](1), seed=1)
    weights.save(saved, tmp_path / "a")
    before = loaded.tensor
    weights.load(tmp_path / "a", loaded)
    assert loaded.tensor is before
    assert loaded.tensor.stride() == LAYOUTS[layout](1).stride()
    assert bits(loaded.tensor) == bits(saved.tensor)
    assert state(loaded) == state(saved)


UNWRITABLE = {
    "expanded": (lambda: torch.zeros(1, 6).expand(4, 6), "entries that share memory"),
    "unfolded": (lambda: torch.zeros(9).unfold(0, 6, 1), "entries that share memory"),
    "sparse": (lambda: torch.zeros(4, 6).to_sparse(), "is not dense in the model"),
    "rows": (lambda: torch.zeros(4, 6).to_sparse_csr(), "is not dense in the model"),
    "lazy": (nn.UninitializedBuffer, "has no shape yet: call the model once"),
    "lazy parameter": (nn.UninitializedParameter, "has no shape yet: call the model once"),
    "shared": (None, "'tensor' shares memory with 'other'"),
}


@pytest.mark.filterwarnings("ignore:Sparse CSR")
@pytest.mark.parametrize("load", [weights.load, weights.load_checkpoint])
@pytest.mark.parametrize("kind", UNWRITABLE)
def test_what_cannot_be_written_is_named_before_anything_changes(kind, load, tmp_path):
    make, message = UNWRITABLE[kind]
    saved = Model(torch.arange(24.0).reshape(4, 6))
    loaded = Model(torch.zeros(4, 6) if make is None else make(), seed=1)
    if make is None:  # overlaps by a half
        memory = torch.zeros(36)
        loaded.tensor = memory[:24].view(4, 6)
        loaded.register_buffer("other", memory[12:].view(4, 6))
        saved.register_buffer("other", torch.ones(4, 6))
    path = tmp_path / "a"
    weights.save(saved, path) if load is weights.load else weights.save_checkpoint(path, saved)
    weights.pack(saved, {"first.weight": quantize.Affine(4)})
    if load is weights.load:  # packed weights are not put in either
        weights.save(saved, path)
    before, tensor = state(loaded), loaded.tensor
    with pytest.raises(ValueError, match=f"{message}"):
        load(path, loaded)
    assert state(loaded) == before
    assert loaded.tensor is tensor
    if kind in ("expanded", "unfolded", "shared"):
        assert not loaded.tensor.any()
    assert type(loaded.first) is nn.Linear


def test_views_of_one_memory_are_loaded_where_they_agree(tmp_path):
    def model(fill):
        made, memory = Model(None), torch.full((36,), fill)
        made.tensor = memory[:24].view(4, 6)
        made.register_buffer("other", memory[12:].view(4, 6))
        made.register_buffer("apart", memory[:12])
        return made

    weights.save(model(torch.nan), tmp_path / "a")
    loaded = model(0.0)
    weights.load(tmp_path / "a", loaded)
    assert loaded.other.isnan().all()


def test_a_model_of_inference_mode_is_loaded(tmp_path):
    weights.save(Model(torch.ones(4)), tmp_path / "a")
    with torch.inference_mode():
        loaded = Model(torch.zeros(4), seed=1)
    weights.load(tmp_path / "a", loaded)
    assert state(loaded) == state(Model(torch.ones(4)))
    assert loaded.tensor.is_inference()
    loaded = Model(torch.zeros(4), seed=1)
    with torch.inference_mode():
        weights.load(tmp_path / "a", loaded)
    assert state(loaded) == state(Model(torch.ones(4)))
    assert not loaded.tensor.is_inference()


class Refusing(torch.Tensor):
    """A tensor of another library, which refuses copies at the first attempt, and half of them."""

    error: BaseException | None = RuntimeError("not here")

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        result = super().__torch_function__(function, types, args, kwargs or {})
        if function is torch.Tensor.copy_ and cls.error is not None:
            error, cls.error = cls.error, None
            raise error
        return result


@pytest.mark.parametrize(
    "error", [RuntimeError("not here"), KeyboardInterrupt(), torch.cuda.OutOfMemoryError("full")]
)
@pytest.mark.parametrize("packed", [False, True])
def test_a_copy_that_fails_leaves_all_as_it_was(packed, error, tmp_path):
    saved = Model(torch.ones(4))
    if packed:
        weights.pack(saved, {"first.weight": quantize.Affine(4)})
    weights.save(saved, tmp_path / "a")
    loaded = Model(torch.zeros(4).as_subclass(Refusing), seed=1)
    with torch.device("meta"):
        loaded.first.bias = nn.Parameter(torch.empty(32))
    before, bias = [bits(loaded.first.weight), bits(loaded.last.weight)], loaded.first.bias
    Refusing.error = error
    named = isinstance(error, RuntimeError) and not isinstance(error, torch.cuda.OutOfMemoryError)
    expected = ValueError if named else type(error)
    message = "'tensor' cannot be written to: not here" if named else None
    with pytest.raises(expected, match=message):
        weights.load(tmp_path / "a", loaded)
    assert before == [bits(loaded.first.weight), bits(loaded.last.weight)]
    assert loaded.first.bias is bias
    assert not torch.any(loaded.tensor.as_subclass(torch.Tensor))


@pytest.mark.parametrize("mapped", [True, False])
def test_a_file_overwritten_in_place_changes_a_model_that_is_mapped_alone(mapped, tmp_path):
    path = tmp_path / "a"
    model = Model(torch.ones(4))
    weights.pack(model, {"first.weight": quantize.Affine(4)})
    weights.save(model, path)
    loaded = weights.load(path, Model(torch.zeros(4)), mapped=mapped)
    before = loaded.first.weight.clone()
    with path.open("r+b") as file:
        size = os.path.getsize(path)
        file.seek(size - 400)
        file.write(os.urandom(400))
    assert torch.equal(loaded.first.weight, before) is not mapped
    assert torch.equal(loaded.tensor, torch.ones(4))


def test_a_dtype_that_torch_lacks_is_a_difference(tmp_path):
    path = tmp_path / "a"
    plain.save(path, {"tensor": plain.RawTensor("F6_E2M3", (4,), np.zeros(3, np.uint8))})
    model = nn.Module()
    model.register_buffer("tensor", torch.zeros(4))
    with pytest.raises(
        ValueError, match="'tensor' is float32 in the model, and F6_E2M3 in the file"
    ):
        weights.load(path, model)
