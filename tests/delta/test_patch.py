"""A patch makes the new model of its base to the bit, and of nothing else, or changes nothing."""

import itertools
import signal
import time

import numpy as np
import pytest
import torch

from gradwire import _native, delta
from gradwire.errors import BaseMismatchError, CorruptFrameError, UnsupportedFrameError
from gradwire.torch.delta import DeviceBytes
from gradwire.weights import RawTensor

STRANGE = [0.0, -0.0, float("inf"), -float("inf"), float("nan"), 1e-45, -1e-40, 1.0, 3.4e38]
DTYPES = [
    *(torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.float8_e4m3fn),
    *(torch.int64, torch.int8, torch.uint8, torch.bool, torch.complex64),
]


def bits(model):
    """The bytes of all tensors, for comparisons in which NaN is like itself, and -0 unlike 0."""
    return {
        name: each.detach().reshape(-1).view(torch.uint8).numpy()
        if isinstance(each, torch.Tensor)
        else np.frombuffer(each.data if isinstance(each, RawTensor) else each.tobytes(), np.uint8)
        for name, each in model.items()
    }


def same(one, other):
    one, other = bits(one), bits(other)
    return one.keys() == other.keys() and all((one[name] == other[name]).all() for name in one)


def tensor_of(dtype, numel, seed):
    drawn = torch.from_numpy(np.random.default_rng(seed).integers(0, 256, 16 * numel, np.uint8))
    if dtype is torch.bool:
        return drawn[:numel] > 99
    return drawn.view(dtype)[:numel].clone()


def moved(model, share=0.1):
    """A model some of whose entries have other low bits."""
    new = {name: each.clone() for name, each in model.items()}
    for i, each in enumerate(new.values()):
        if each.numel() and each.dtype is not torch.bool:
            raw = each.reshape(-1).view(torch.uint8)
            low = torch.arange(0, len(raw), max(each.element_size(), int(1 / share)) + i % 3)
            raw[low] ^= 3
    return new


def devices(model):
    """The same tensors as if they were on a device: bytes are copied to and fro."""
    kinds = delta.tensors.tensors_of(model)
    return {name: DeviceBytes(kinds[name].dtype, model[name]) for name in model}


def many(seed=1):
    """Tensors of every dtype, of strange values, empty, scalar, and larger than a block."""
    return {
        **{f"{i}.{dtype}": tensor_of(dtype, 300 + i, seed) for i, dtype in enumerate(DTYPES)},
        "strange": torch.tensor(STRANGE),
        "strange.half": torch.tensor(STRANGE).bfloat16(),
        "empty": torch.empty(0, 7),
        "scalar": torch.tensor(2.5, dtype=torch.bfloat16),
        "large": tensor_of(torch.bfloat16, (1 << 20) + 77, seed),
        "larger": tensor_of(torch.bfloat16, (2 << 20) + 1, seed + 1).reshape(1, -1),
        "wide": tensor_of(torch.float32, (3 << 20) + 5, seed),
        "zz": tensor_of(torch.float32, 9, seed),
    }


@pytest.mark.parametrize("place", ["host", "device"])
def test_a_patch_makes_the_new_model_and_names_both(place):
    base = many()
    new = moved(base)
    new["0.torch.bfloat16"] = tensor_of(torch.bfloat16, 300, 5)  # all other values
    patch = delta.encode(base, new)
    assert delta.digests(patch) == (delta.digest(base), delta.digest(new))
    model = {name: each.clone() for name, each in base.items()}
    target = model
    if place == "device":
        target = devices(model)
        assert delta.encode(base, moved(base)) == delta.encode(target, moved(base))
    out = {name: torch.zeros_like(each) for name, each in base.items()}
    delta.apply(target, patch, out)
    assert same(out, new)
    assert same(model, base)
    delta.apply(target, patch)
    assert same(model, new)
    with pytest.raises(BaseMismatchError):
        delta.apply(target, patch)
    assert same(model, new)


def test_arrays_modules_and_raw_tensors_are_models_too():
    base, new = np.zeros(5, np.float32), np.arange(5, dtype=np.float32)
    patch = delta.encode(base, new)
    assert len(patch) < 60 + 2 * 5
    delta.apply(base, patch)
    assert (base == new).all()
    one, other = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    delta.apply(one, delta.encode(one, other))
    assert same(one.state_dict(), other.state_dict())
    raw = {"x": RawTensor("F4", (4,), np.array([1, 2], np.uint8))}
    delta.apply(raw, delta.encode(raw, {"x": RawTensor("F4", (4,), np.array([1, 9], np.uint8))}))
    assert raw["x"].data.tolist() == [1, 9]
    assert delta.digest({}) == delta.digests(delta.encode({}, {}))[1]


def small():
    return {"b": torch.arange(6.0), "a": torch.ones(2, 3, dtype=torch.bfloat16)}


def changed(**new):
    return {**small(), **new}


@pytest.mark.parametrize(
    "other",
    [
        changed(c=torch.ones(1)),
        {"a": small()["a"]},
        {"A": small()["a"], "b": small()["b"]},
        changed(a=torch.ones(3, 2, dtype=torch.bfloat16)),
        changed(a=torch.ones(2, 3, dtype=torch.float16)),
        changed(b=torch.tensor([0.0, 1, 2, 3, 4, np.nextafter(np.float32(5), np.float32(6))])),
        changed(b=torch.tensor([-0.0, 1, 2, 3, 4, 5])),
        {},
    ],
)
def test_another_base_is_refused(other):
    patch = delta.encode(small(), moved(small()))
    before = {name: each.clone() for name, each in other.items()}
    with pytest.raises(BaseMismatchError):
        delta.apply(other, patch)
    assert same(other, before)


def sealed(data):
    return data + _native.crc32c(data).to_bytes(4, "little")


def test_a_damaged_patch_is_refused_before_anything_changes():
    base = small()
    patch = delta.encode(base, moved(base))
    for length in range(len(patch)):
        with pytest.raises(CorruptFrameError):
            delta.apply(base, patch[:length])
    for at in range(len(patch)):
        damaged = bytearray(patch)
        damaged[at] ^= 1 << at % 8
        with pytest.raises((CorruptFrameError, UnsupportedFrameError)):
            delta.apply(base, damaged)
        with pytest.raises((CorruptFrameError, UnsupportedFrameError)):
            delta.digests(damaged)
    with pytest.raises(CorruptFrameError):
        delta.apply(base, patch + b"\0")
    with pytest.raises(UnsupportedFrameError, match="patch version 2"):
        delta.apply(base, sealed(patch[:4] + b"\2" + patch[5:-4]))
    with pytest.raises(CorruptFrameError, match="2 bytes follow"):
        delta.apply(base, sealed(patch[:-4] + b"\0\0"))
    assert same(base, small())


@pytest.mark.parametrize("place", ["host", "device"])
def test_a_patch_forged_behind_a_right_checksum_changes_nothing(place):
    base = small()
    patch, refused = delta.encode(base, moved(base)), 0
    target = base if place == "host" else devices(base)
    for at in range(21, len(patch) - 4):
        for bit in range(8):
            forged = bytearray(patch[:-4])
            forged[at] ^= 1 << bit
            try:
                delta.apply(target, sealed(bytes(forged)))
            except (CorruptFrameError, BaseMismatchError):
                refused += 1
            else:  # other codes of the same steps
                assert same(base, moved(small()))
                base["a"].copy_(small()["a"])
                base["b"].copy_(small()["b"])
            assert same(base, small())
    assert refused > 7 * (len(patch) - 25)


@pytest.mark.parametrize("place", ["host", "device"])
@pytest.mark.parametrize("where", ["patch_apply", "gather", "_parts"])
def test_an_exception_between_pieces_restores_the_base(place, where, monkeypatch):
    base = {
        **{name: each for name, each in many().items() if len(each.reshape(-1)) < 400},
        "large": tensor_of(torch.bfloat16, (1 << 20) + 9, 3),
        "low": tensor_of(torch.float32, (1 << 20) + 9, 4),
    }
    new, before = moved(base), {name: each.clone() for name, each in base.items()}
    patch = delta.encode(base, new)
    target = base if place == "host" else devices(base)
    owner = _native if where == "patch_apply" else delta.tensors.Buffer
    real, left = getattr(owner, where), [0]

    def tick():
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt

    def failing(*given):
        if where != "_parts":
            tick()
            return real(*given)
        return ticking(real(*given))

    def ticking(parts):
        for part in parts:
            yield part
            tick()  # it has been written, others of the piece have not

    monkeypatch.setattr(owner, where, failing)
    for count in itertools.count(1, 1 + 2 * (where == "_parts")):
        left[0] = count
        try:
            delta.apply(target, patch)
        except KeyboardInterrupt:
            assert same(base, before)
        else:
            break
    assert same(base, new)
    assert count >= 5


def test_a_signal_during_the_work_restores_the_base():
    base = {str(i): tensor_of(torch.float32, 1 << 20, i) for i in range(6)}
    new = moved(base)
    patch, raised = delta.encode(base, new), 0

    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGVTALRM, interrupt)
    try:
        start = time.process_time()
        delta.apply(base, patch, {name: each.clone() for name, each in base.items()})
        seconds = time.process_time() - start
        for i in range(20):
            model = {name: each.clone() for name, each in base.items()}
            try:
                signal.setitimer(signal.ITIMER_VIRTUAL, seconds * (i + 1) / 20)
                delta.apply(model, patch)
                signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            except KeyboardInterrupt:
                raised += 1
            assert same(model, base) or same(model, new)
    finally:
        signal.signal(signal.SIGVTALRM, before)
    assert raised


def test_tied_tensors_count_once():
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    model[1].weight = model[0].weight
    base = {name: each.clone() for name, each in model.state_dict().items()}
    with torch.no_grad():
        model[0].weight.add_(1)
    patch = delta.encode(base, model)
    untied = {name: each.clone() for name, each in base.items() if name != "1.weight"}
    delta.apply(untied, patch)
    assert same(untied | {"1.weight": untied["0.weight"]}, model.state_dict())
    other = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    other.load_state_dict(base)
    with pytest.raises(BaseMismatchError):
        delta.apply(other, patch)
    other[1].weight = other[0].weight
    delta.apply(other, patch)
    assert same(other.state_dict(), model.state_dict())


whole = np.arange(20, dtype=np.float32)


@pytest.mark.parametrize(
    ("model", "error"),
    [
        ({"x": whole[::2]}, ValueError),
        ({"x": torch.arange(20.0)[::2]}, ValueError),
        ({"x": torch.ones(3, 4).T}, ValueError),
        ({"x": torch.ones(3, device="meta")}, ValueError),
        ({"x": torch.ones(3, dtype=torch.complex64).conj()}, ValueError),
        ({"x": whole.astype(">f4")}, ValueError),
        ({"x": whole[:9], "y": whole[8:]}, ValueError),
        ({"x": torch.arange(20.0)[:9], "y": torch.zeros(20)[8:].reshape(-1, 2).T}, ValueError),
        ({"x": torch.eye(3).to_sparse()}, ValueError),
        ({"x": np.ma.masked_array(whole)}, TypeError),
        ({"x": np.array(["a"])}, TypeError),
        ({"x": np.array([None])}, TypeError),
        ({"x": 3.0}, TypeError),
        ({"x": None}, TypeError),
        ({3: whole}, TypeError),
        (None, TypeError),
        ([whole], TypeError),
    ],
)
def test_what_is_no_model_is_refused(model, error):
    with pytest.raises(error):
        delta.encode(model, model)
    with pytest.raises(error):
        delta.digest(model)


def test_models_of_different_kinds_have_no_patch():
    for other in ({"x": whole}, changed(c=whole), changed(a=torch.ones(3, 2))):
        with pytest.raises(ValueError, match="not in both"):
            delta.encode(small(), other)
        with pytest.raises(ValueError, match="not in both"):
            delta.apply(small(), delta.encode(small(), small()), out=other)


def test_a_model_that_cannot_be_written_to_is_unchanged():
    base = {"a": np.zeros(1 << 20, np.float32), "b": np.zeros(3, np.float32)}
    patch = delta.encode(base, {name: each + 1 for name, each in base.items()})
    base["b"].flags.writeable = False
    with pytest.raises((ValueError, TypeError)):
        delta.apply(base, patch)
    assert not base["a"].any()
    with pytest.raises(TypeError):
        delta.apply(base, None)
