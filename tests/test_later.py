"""Encodes in two halves, as DDP makes them of a bucket: presets with a memory in one buffer."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gradwire
from gradwire import _native
from gradwire.presets import PRESETS

DTYPES = [np.float32, np.float64, np.float16]


def in_one(codec: gradwire.Codec, **options: Any) -> gradwire.Codec:
    """The codec with a memory in one buffer."""
    memory: Any = codec.memory
    return dataclasses.replace(
        codec, memory=dataclasses.replace(memory, low_memory=True, **options)
    )


def codecs() -> list[Any]:
    """Every preset whose memory may have one buffer, and those that may be bfloat16 so too."""
    found = []
    for name, preset in PRESETS.items():
        codec = preset.build(**preset.example)
        names = {field.name for field in dataclasses.fields(codec.memory)}
        if "low_memory" in names:
            found.append(pytest.param(in_one(codec), id=name))
        if {"low_memory", "dtype"} <= names:
            found.append(pytest.param(in_one(codec, dtype="bfloat16"), id=f"{name}-bfloat16"))
    return found


class Halves:
    """States of a bucket whose encodes are made in two halves."""

    def __init__(self, codecs: list[gradwire.Codec], numels: list[int]) -> None:
        self.codecs = codecs
        self.states = [
            codec.init_state(n, name=str(i))
            for i, (codec, n) in enumerate(zip(codecs, numels, strict=True))
        ]
        stops = np.cumsum(numels)
        self.ends = np.stack([stops - numels, stops], 1).ravel().tolist()
        self.limits = [codec.max_encoded_len(n) for codec, n in zip(codecs, numels, strict=True)]

    def first(
        self, x: Any, scale: float = 1.0, limits: list[int] | None = None
    ) -> tuple[list[bytes], Exception | None]:
        """Write the frames."""
        limits = limits or self.limits
        out = np.zeros(sum(limits), np.uint8)
        own = [codec._codec for codec in self.codecs]
        table, error = _native.encode_bucket(
            x, scale, own, self.states, self.ends, limits, (), out, later=True
        )
        sizes = table.reshape(-1, 6)[:, 0]
        stops = np.cumsum(sizes)
        return [out[b - n : b].tobytes() for b, n in zip(stops, sizes, strict=True)], error

    def second(self, x: Any, frames: list[bytes], scale: float = 1.0) -> None:
        """Write the memories."""
        sizes = [len(frame) for frame in frames]
        starts = np.cumsum([0, *sizes[:-1]]).tolist()
        data = np.frombuffer(b"".join(frames), np.uint8)
        _native.settle_bucket(x, scale, self.states, self.ends, data, starts, sizes)


def kept(state: Any) -> dict[str, Any]:
    """All that a state is, to the bit."""
    saved = state.state_dict()
    saved.pop("config")
    return {
        key: each.tobytes() if isinstance(each, np.ndarray) else each for key, each in saved.items()
    }


@pytest.mark.parametrize("codec", codecs())
def test_halves_are_the_ordinary_encode_of_every_preset(codec: Any, rng: Any) -> None:
    numels = [257, 0, 1, 64, 5000]
    own = [codec.for_shape((n,)) for n in numels]
    halves = Halves(own, numels)
    pairs = enumerate(zip(own, numels, strict=True))
    ordinary = [each.init_state(n, name=str(i)) for i, (each, n) in pairs]
    for step, dtype in enumerate([*DTYPES, np.float32]):
        x = (rng.standard_normal(sum(numels)) * rng.choice([0.01, 1.0, 8.0])).astype(dtype)
        if step == 1:
            x[:] = 0
        scale = 4.0 if step == 2 else 1.0
        before = [kept(state) for state in halves.states]
        for dropped in (True, False):
            frames, error = halves.first(x, scale)
            assert error is None
            assert [kept(state) for state in halves.states] == before
            if dropped:
                for state in halves.states:
                    state.rollback()
        halves.second(x, frames, scale)
        for i, (state, each) in enumerate(zip(ordinary, own, strict=True)):
            piece = x[halves.ends[2 * i] : halves.ends[2 * i + 1]]
            piece = piece if scale == 1.0 else piece.astype(np.float32) / np.float32(scale)
            frame = bytes(each.encode(piece, state))
            if scale == 1.0:
                assert frame == frames[i]
            assert kept(state) == kept(halves.states[i])
            assert state.last == halves.states[i].last


@settings(max_examples=60, deadline=None)
@given(
    data=st.data(),
    numel=st.integers(0, 600),
    seed=st.integers(0, 2**32 - 1),
    limit=st.none() | st.integers(64, 400),
)
def test_nothing_is_lost_between_the_halves(data: Any, numel: int, seed: int, limit: Any) -> None:
    (codec,) = data.draw(st.sampled_from(codecs())).values
    if codec.memory.updates or getattr(codec.memory, "dtype", "") == "bfloat16":
        return
    codec = codec.for_shape((numel,))
    halves = Halves([codec], [numel])
    (state,) = halves.states
    rng = np.random.default_rng(seed)
    limits = [limit] if limit and codec.sparsify.selects else None
    for _ in range(3):
        x = rng.standard_normal(numel).astype(np.float32)
        residual: Any = state.residual
        frames, error = halves.first(x, limits=limits)
        assert error is None
        np.testing.assert_array_equal(state.residual, residual)
        halves.second(x, frames)
        total = x + np.float32(codec.memory.decay) * residual
        sent = gradwire.decode(frames[0])
        np.testing.assert_array_equal(state.residual, total - sent)


def test_a_bad_parameter_leaves_those_before_it_to_be_dropped(rng: Any) -> None:
    codec = in_one(gradwire.topk(ratio=0.1))
    halves = Halves([codec] * 3, [50, 50, 50])
    x = rng.standard_normal(150).astype(np.float32)
    frames, _ = halves.first(x)
    halves.second(x, frames)
    before = [kept(state) for state in halves.states]
    x[70] = np.nan
    frames, error = halves.first(x)
    assert isinstance(error, gradwire.NonFiniteError)
    assert (len(frames), error.first) == (1, 20)
    halves.states[0].rollback()
    assert [kept(state) for state in halves.states] == before
    for state in halves.states:
        with pytest.raises(ValueError, match="low_memory"):
            state.rollback()


def test_settling_says_what_it_does_not_take(rng: Any) -> None:
    codec = in_one(gradwire.topk(ratio=0.1))
    halves = Halves([codec], [50])
    x = rng.standard_normal(50).astype(np.float32)
    with pytest.raises(ValueError, match="nothing to settle"):
        halves.second(x, [b""])
    frames, _ = halves.first(x)
    data = np.frombuffer(frames[0], np.uint8)
    for starts, sizes, match in (([0, 1], [1], "starts must have 1 items"), ([1], [9999], "past")):
        with pytest.raises(ValueError, match=match):
            _native.settle_bucket(x, 1.0, halves.states, [0, 50], data, starts, sizes)
    halves.second(x, frames)
    two = gradwire.topk(ratio=0.1)
    _, error = Halves([two], [50]).first(x)
    assert "can be rolled back" in str(error).replace("\n", " ")
