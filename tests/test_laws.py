"""Laws of every composition and every tensor: what hypothesis cannot break."""

import copy
import json
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import gradwire
import tests.outside_parts
from gradwire.memory import NoMemory, Residual
from gradwire.presets import PRESETS
from gradwire.quantize import Exponent, Float8, Float32
from gradwire.sparsify import All, RandomK, Threshold, TopK
from tests.outside_parts import Dithered, Halves
from tests.presets.conservation import holds
from tests.support import (
    CODECS,
    FILTERS,
    FITTED,
    MEMORIES,
    QUANTIZERS,
    SPARSIFIERS,
    go_together,
    kept,
    largest,
    same_state,
)

COMPOSITIONS = [
    *CODECS,
    *(
        gradwire.Codec(sparsify=sparsify, quantize=quantize, memory=memory)
        for sparsify in (All(), Threshold(0.5), TopK(ratio=0.2))
        for quantize in FITTED
        for memory in (NoMemory(), Residual(), Residual(decay=0.9, low_memory=True))
        if go_together(quantize, memory)
    ),
    *(
        gradwire.Codec(sparsify=sparsify, quantize=quantize, memory=memory)
        for sparsify in SPARSIFIERS
        for memory in FILTERS
        for quantize in QUANTIZERS[:2]
        if not (isinstance(sparsify, All) and getattr(memory, "masking", False))
    ),
    *(preset.build(**preset.example) for preset in PRESETS.values()),
    # Quantizers from another package, in turn.
    *(
        gradwire.Codec(sparsify=sparsify, memory=memory, quantize=(Halves(), Dithered(3))[at % 2])
        for at, sparsify in enumerate(SPARSIFIERS)
        for memory in ((*MEMORIES, *FILTERS)[at % 3 :: 3])
        if sparsify.selects or not getattr(memory, "masking", False)
    ),
]
"""Every two parts together, each with a few of its options, and every preset."""

# Sums of a few of them stay finite; subnormals, negative zeros and heavy ties are all there.
floats = st.one_of(
    st.floats(-(2.0**120), 2.0**120, width=32), st.sampled_from([0.0, -0.0, 1.0, -1.0, 0.5, 1e-45])
)
tensors = hnp.arrays(np.float32, st.integers(0, 300), elements=floats)
codecs = st.sampled_from(COMPOSITIONS)
ratios = st.floats(1e-4, 1.0)
often = settings(max_examples=150)


@st.composite
def steps(draw):
    n = draw(st.integers(0, 200))
    return draw(st.lists(hnp.arrays(np.float32, n, elements=floats), min_size=1, max_size=4))


def state_of(codec, numel):
    return codec.init_state(numel, name="w", stream=1)


def test_compositions_describe_themselves():
    for codec in COMPOSITIONS:
        assert eval(repr(codec), {"gradwire": gradwire, "tests": tests}) == codec
        assert gradwire.Codec.from_config(json.loads(json.dumps(codec.get_config()))) == codec
        assert pickle.loads(pickle.dumps(codec)) == copy.deepcopy(codec) == codec
        assert len({codec, copy.copy(codec)}) == 1


@often
@given(codecs, steps())
def test_nothing_is_lost(codec, steps):
    """What arrives is the tensor with the memory, rounded, and what stays is the rest.

    To the last bit, but that a memory has zeros for what is below the smallest normal number.
    """
    codec = codec.for_shape(steps[0].shape)
    state = state_of(codec, steps[0].size)
    for step, x in enumerate(steps):
        before, saved, seen = state.residual, state.state_dict(), codec.preview(x, state)
        assert same_state(state.state_dict(), saved)
        if isinstance(codec.memory, Residual):
            assert np.array_equal(kept(seen), kept(x + np.float32(codec.memory.decay) * before))
        frame = codec.encode(x, state)
        sent = gradwire.decode(frame)
        assert np.isfinite(sent).all()
        assert holds(codec, seen, sent, before, state.residual, frame.indices())
        if codec.quantize == Float32():
            assert np.array_equal(frame.values(), seen[frame.indices()])
        assert state.step == step + 1


@often
@given(codecs, tensors, st.floats(-4, 4, width=32))
def test_frames_say_what_they_hold_and_adding_is_adding_what_was_decoded(codec, x, scale):
    codec = codec.for_shape(x.shape)
    frame = codec.encode(x, state_of(codec, x.size))
    indices, values, dense = frame.indices(), frame.values(), gradwire.decode(frame)
    assert (frame.numel, frame.count, frame.dtype) == (x.size, indices.size, "float32")
    assert (np.diff(indices.astype(np.int64)) > 0).all()
    expected = np.zeros(x.size, np.float32)
    expected[indices] = values
    assert dense.tobytes() == expected.tobytes()
    assert frame.nbytes <= codec.max_encoded_len(x.size)
    assert gradwire.Frame(bytes(frame)) == frame
    out = np.linspace(-1, 1, x.size, dtype=np.float32)
    expected = out + np.float32(scale) * dense
    gradwire.decode_add(frame, out, scale)
    assert np.array_equal(out, expected)


@often
@given(codecs, steps())
def test_a_state_is_saved_copied_undone_and_reset_to_the_bit(codec, steps):
    codec, last = codec.for_shape(steps[0].shape), steps[-1]
    state = state_of(codec, last.size)
    for x in steps[:-1]:
        codec.encode(x, state)
    before = state.state_dict()
    restored = state_of(codec, last.size)
    restored.load_state_dict(pickle.loads(pickle.dumps(before)))
    copies = [copy.copy(state), copy.deepcopy(state), pickle.loads(pickle.dumps(state))]
    frame, after = codec.encode(last, state), state.state_dict()
    for each in (restored, *copies):
        assert each.name == "w"
        assert same_state(each.state_dict(), before)
        assert codec.encode(last, each) == frame
        assert same_state(each.state_dict(), after)
    state.rollback()
    assert same_state(state.state_dict(), before)
    assert codec.encode(last, state) == frame
    assert same_state(state.state_dict(), after)
    state.reset()
    assert same_state(state.state_dict(), state_of(codec, last.size).state_dict())


@often
@given(codecs, steps(), st.sampled_from([np.nan, np.inf, -np.inf]))
def test_what_is_not_finite_is_counted_and_leaves_no_trace(codec, steps, bad):
    size = steps[0].size
    if size < 3 or (codec.memory == NoMemory() and isinstance(codec.sparsify, RandomK)):
        return  # what draws positions looks at those alone
    codec = codec.for_shape((size,))
    state, x = state_of(codec, size), steps[-1].copy()
    for each in steps:
        codec.encode(each, state)
    saved, x[[1, size - 1]] = state.state_dict(), bad
    with pytest.raises(gradwire.NonFiniteError) as caught:
        codec.encode(x, state)
    error = caught.value
    assert (error.count, error.first, error.name) == (2, 1, "w")
    assert "'w' has 2 non-finite value(s), the first at position 1" in str(error)
    assert same_state(state.state_dict(), saved)


@often
@given(codecs, steps())
def test_given_positions_give_what_selecting_gives(codec, steps):
    if codec.sparsify == All():
        return
    codec = codec.for_shape(steps[0].shape)
    own, given = state_of(codec, steps[0].size), state_of(codec, steps[0].size)
    for x in steps:
        frame = codec.encode(x, own)
        again = codec.encode_at(x, given, frame.indices())
        # How positions are coded may differ: those that are drawn need no more than a key.
        assert np.array_equal(again.indices(), frame.indices())
        assert np.array_equal(again.values(), frame.values())
        for kept_there in ("residual", "momentum", "second_moment", "estimate"):
            a, b = getattr(own, kept_there), getattr(given, kept_there)
            assert (a is None) == (b is None)
            assert a is None or np.array_equal(a, b)


@often
@given(codecs, tensors, st.integers(0, 400))
def test_a_limit_is_kept_and_the_rest_stays(codec, x, limit):
    codec = codec.for_shape(x.shape)
    state = state_of(codec, x.size)
    before, seen, saved = state.residual, codec.preview(x, state), state.state_dict()
    try:
        frame = codec.encode(x, state, max_nbytes=limit)
    except ValueError:
        # Nothing can be left out where every entry goes, or all ranks send the same.
        assert limit < 48 + 16 or codec.sparsify == All() or isinstance(codec.sparsify, RandomK)
        assert same_state(state.state_dict(), saved)
        return
    assert frame.nbytes <= limit
    assert holds(codec, seen, gradwire.decode(frame), before, state.residual, frame.indices())


@given(st.sampled_from([each for each in FITTED if isinstance(each, Float8 | Exponent)]), tensors)
def test_what_was_decoded_is_encoded_without_loss(quantize, x):
    """Rounding is the identity on what it gives, where codes depend on a peak alone."""
    codec = gradwire.Codec(sparsify=All(), quantize=quantize, memory=NoMemory())
    once = gradwire.decode(codec.encode(x, state_of(codec, x.size)))
    assert np.array_equal(gradwire.decode(codec.encode(once, state_of(codec, x.size))), once)


@given(tensors, ratios)
def test_top_k_is_the_largest_k(x, ratio):
    frame = gradwire.topk(ratio, memory=NoMemory()).encode(x)
    assert np.array_equal(frame.indices(), largest(x, max(1, int(x.size * ratio))))


@given(tensors, st.floats(0, 2.0**100, width=32))
def test_a_threshold_is_strict(x, threshold):
    frame = gradwire.threshold(threshold, memory=NoMemory()).encode(x)
    assert np.array_equal(frame.indices(), np.flatnonzero(np.abs(x) > np.float32(threshold)))


@given(tensors, ratios, st.integers(-20, 20))
def test_a_power_of_two_scales_the_values_and_nothing_else(x, ratio, exponent):
    codec = gradwire.topk(ratio, memory=NoMemory())
    x = np.where(np.abs(x) < 1e-30, 0, x * np.float32(1e-10))
    plain, scaled = codec.encode(x), codec.encode(np.ldexp(x, exponent))
    assert np.array_equal(plain.indices(), scaled.indices())
    assert np.array_equal(np.ldexp(plain.values(), exponent), scaled.values())


@settings(max_examples=500)
@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_no_frame(data):
    try:
        frame = gradwire.Frame(data)
    except gradwire.GradwireError:
        return
    # Valid by accident: then it is a frame in every respect.
    assert bytes(frame) == data
