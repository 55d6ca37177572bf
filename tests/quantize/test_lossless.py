"""Lossless values: what is written, by a reader of its own, and what becomes of the rest."""

import zlib

import ml_dtypes
import numpy as np
import pytest

import gradwire
from gradwire.memory import NoMemory
from gradwire.quantize import BFloat16, Float16, Float32, Lossless
from gradwire.sparsify import All, TopK
from tests.quantize import plain_lossless

FORMATS = {
    "float32": (np.dtype("<f4"), Float32()),
    "bfloat16": (np.dtype(ml_dtypes.bfloat16), BFloat16()),
    "float16": (np.dtype("<f2"), Float16(scaled=False)),
}


def dense(quantize) -> gradwire.Codec:
    return gradwire.Codec(sparsify=All(), quantize=quantize, memory=NoMemory())


def draws(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_t(3, count).astype(np.float32)


def section(frame: gradwire.Frame) -> bytes:
    return bytes(frame)[len(frame) - frame.header()["value_nbytes"] :]


def encode(codec, x, steps=1):
    state = codec.init_state(x)
    return [codec.encode(x, state) for _ in range(steps)], state


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("count", [1, 2, 100, 2047, 2048, 5000, 70_000])
def test_a_reader_of_the_text_finds_the_rounded_values(name, count) -> None:
    dtype, plain = FORMATS[name]
    x = draws(count)
    frame = dense(Lossless(name)).encode(x)
    codes, kind = plain_lossless.read(section(frame), count)
    expected = gradwire.decode(dense(plain).encode(x))
    found = np.array(codes, f"<u{dtype.itemsize}").view(dtype).astype(np.float32)
    np.testing.assert_array_equal(found.view("u4"), expected.view("u4"))
    np.testing.assert_array_equal(gradwire.decode(frame).view("u4"), expected.view("u4"))
    assert kind == (count >= 100)


@pytest.mark.parametrize("name", FORMATS)
def test_one_symbol_and_zeros_and_the_ends_of_the_range(name) -> None:
    tiny, huge = np.float32(1e-45), np.finfo(np.float32).max
    for x in (np.full(3000, 1.5), np.full(9, -0.0), np.tile([tiny, -tiny, huge, -huge, 0], 40)):
        x = x.astype(np.float32)
        expected = gradwire.decode(dense(FORMATS[name][1]).encode(x))
        frame = dense(Lossless(name)).encode(x)
        np.testing.assert_array_equal(gradwire.decode(frame).view("u4"), expected.view("u4"))
        plain_lossless.read(section(frame), len(x))


@pytest.mark.parametrize("name", FORMATS)
def test_memory_and_values_are_those_of_the_float_itself(name) -> None:
    x = draws(50_000)
    for sparsify in (TopK(ratio=0.01), All()):
        codec = gradwire.Codec(sparsify=sparsify, quantize=Lossless(name))
        frames, state = encode(codec, x, 3)
        plain = codec.replace(quantize=FORMATS[name][1])
        longer, other = encode(plain, x, 3)
        for frame, long in zip(frames, longer, strict=True):
            np.testing.assert_array_equal(gradwire.decode(frame), gradwire.decode(long))
            assert len(frame) < len(long)
            assert len(frame) <= codec.max_encoded_len(len(x))
        np.testing.assert_array_equal(state.residual, other.residual)


@pytest.mark.parametrize("name", FORMATS)
def test_a_state_goes_on_with_the_float_itself_and_back(name) -> None:
    x = draws(20_000)
    codec = gradwire.topk(ratio=0.01, quantize=Lossless(name))
    plain = codec.replace(quantize=FORMATS[name][1])
    (_, second), after = encode(codec, x, 2)
    (first,), state = encode(plain, x)
    fresh = codec.init_state(x)
    fresh.load_state_dict(state.state_dict())
    for each in (state, fresh):
        assert codec.encode(x, each) == second
        np.testing.assert_array_equal(each.residual, after.residual)
    other = gradwire.topk(ratio=0.01, quantize=Float16())
    with pytest.raises(ValueError, match="only ratio, k or threshold may differ"):
        other.encode(x, state)
    another = other.init_state(x)
    another.load_state_dict(state.state_dict())
    np.testing.assert_array_equal(another.residual, state.residual)
    assert len(first) > len(second)


def test_a_limit_counts_coded_bytes_and_what_it_leaves_out_stays_in_the_residual() -> None:
    x = draws(200_000)
    codec = gradwire.topk(ratio=0.01, quantize=Lossless("bfloat16"))
    (whole,), _ = encode(codec, x)
    for share in (1.0, 0.99, 0.6, 0.05):
        state, limit = codec.init_state(x), int(share * len(whole))
        frame = codec.encode(x, state, max_nbytes=limit)
        assert 0.8 * limit - 60 < len(frame) <= limit
        assert frame.count == 2000 if share == 1.0 else frame.count < 2000
        residual = state.residual
        assert residual is not None
        np.testing.assert_array_equal(gradwire.decode(frame) + residual, x)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_without_a_format_values_are_of_the_dtype_of_the_tensor(dtype) -> None:
    x = draws(3000).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    kind = {"bfloat16": "bfloat16"}.get(dtype)
    codec = dense(Lossless())
    if kind:
        torch = pytest.importorskip("torch")
        from gradwire import torch as adapter

        tensor = torch.from_numpy(x.astype(np.float32)).bfloat16()
        frame = adapter.encode(codec, tensor)
    else:
        frame = codec.encode(x)
    np.testing.assert_array_equal(gradwire.decode(frame), x.astype(np.float32))
    number = {"float32": 0, "float64": 0, "bfloat16": 1, "float16": 2}[dtype]
    assert section(frame)[:4] == bytes([number, 1, 0, 0])


def repeating(count: int) -> dict[str, np.ndarray]:
    """Gradients in which bits or values repeat."""
    rng, x = np.random.default_rng(3), draws(count)
    zero = rng.random(count) < 0.9
    levels = rng.integers(0, 256, count)
    return {
        "narrower": x.astype(ml_dtypes.bfloat16).astype(np.float32),
        "zeros": np.zeros(count, np.float32),
        "ones": np.ones(count, np.float32),
        "rows not used": np.where(np.arange(count) // 64 % 16 == 3, x, np.float32(0)),
        "pruned": np.where(zero, np.float32(0), x),
        "pruned by a factor": x * np.where(zero, np.float32(0), np.float32(1)),
        "levels": (levels * 0.013).astype(np.float32),
        "levels of rows": (levels * (1 + np.arange(count) // 4096) * 0.013).astype(np.float32),
        "whole numbers": rng.integers(-9000, 9000, count).astype(np.float32),
    }


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("kind", repeating(1))
@pytest.mark.parametrize("count", [900, 70_000])
def test_what_repeats_is_coded_as_such_and_comes_back(name, kind, count) -> None:
    x = repeating(count)[kind]
    frame = dense(Lossless(name)).encode(x)
    expected = gradwire.decode(dense(FORMATS[name][1]).encode(x))
    np.testing.assert_array_equal(gradwire.decode(frame).view("u4"), expected.view("u4"))
    codes, _ = plain_lossless.read(section(frame), count)
    dtype = FORMATS[name][0]
    found = np.array(codes, f"<u{dtype.itemsize}").view(dtype).astype(np.float32)
    np.testing.assert_array_equal(found.view("u4"), expected.view("u4"))
    if count > 65_536:
        deflated = len(zlib.compress(expected.astype(dtype).tobytes(), 1))
        least = min(deflated + 0.02 * dtype.itemsize * count, dtype.itemsize * count)
        assert len(frame) < least, (len(frame), deflated)
