"""Laws that hold for every tensor: what hypothesis cannot break."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import gradwire
from gradwire.memory import NoMemory
from tests.support import CODECS, QUANTIZERS, kept, largest, same_state

# Sums of a few of them stay finite; subnormals, negative zeros and heavy ties are all there.
floats = st.one_of(
    st.floats(-(2.0**120), 2.0**120, width=32), st.sampled_from([0.0, -0.0, 1.0, -1.0, 0.5, 1e-45])
)
tensors = hnp.arrays(np.float32, st.integers(0, 300), elements=floats)
codecs = st.sampled_from(CODECS)
ratios = st.floats(1e-4, 1.0)


@st.composite
def steps(draw):
    n = draw(st.integers(0, 200))
    return draw(st.lists(hnp.arrays(np.float32, n, elements=floats), min_size=1, max_size=4))


@given(codecs, steps())
def test_nothing_is_lost(codec, steps):
    """What arrives is `total` rounded, what stays is the rest, to the last bit.

    But that a memory has zeros for what is below the smallest normal number.
    """
    state = codec.init_state(steps[0].size)
    for x in steps:
        before = state.residual
        total = x if before is None else kept(x + np.float32(codec.memory.decay) * before)
        frame = codec.encode(x, state)
        sent = gradwire.decode(frame)
        if before is not None:
            assert np.array_equal(state.residual, kept(total - sent))
        if codec.quantize == QUANTIZERS[0]:
            assert np.array_equal(frame.values(), total[frame.indices()])


@given(codecs, tensors)
def test_frames_say_what_they_hold(codec, x):
    frame = codec.encode(x, codec.init_state(x.size))
    indices, values, dense = frame.indices(), frame.values(), gradwire.decode(frame)
    assert (frame.numel, frame.count, frame.dtype) == (x.size, indices.size, "float32")
    assert (np.diff(indices.astype(np.int64)) > 0).all()
    expected = np.zeros(x.size, np.float32)
    expected[indices] = values
    assert dense.tobytes() == expected.tobytes()
    assert frame.nbytes <= codec.max_encoded_len(x.size)
    assert gradwire.Frame(bytes(frame)) == frame


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


@given(codecs, tensors, st.floats(-4, 4, width=32))
def test_adding_is_adding_what_was_decoded(codec, x, scale):
    frame = codec.encode(x, codec.init_state(x.size))
    sent = gradwire.decode(frame)
    out = np.linspace(-1, 1, x.size, dtype=np.float32)
    expected = out + np.float32(scale) * sent
    gradwire.decode_add(frame, out, scale)
    assert np.array_equal(out, expected)


@given(st.sampled_from(CODECS), steps())
def test_rolling_back_undoes_an_encode(codec, steps):
    state = codec.init_state(steps[0].size)
    for x in steps[:-1]:
        codec.encode(x, state)
    before = state.state_dict()
    first = codec.encode(steps[-1], state)
    after = state.state_dict()
    state.rollback()
    assert same_state(state.state_dict(), before)
    assert codec.encode(steps[-1], state) == first
    assert same_state(state.state_dict(), after)


@given(codecs, tensors, st.integers(0, 400))
def test_a_limit_is_kept_and_the_rest_stays(codec, x, limit):
    state = codec.init_state(x.size)
    try:
        frame = codec.encode(x, state, max_nbytes=limit)
    except ValueError:
        # A dense frame has one length only, and none is shorter than its header.
        assert limit < 48 or codec.sparsify == gradwire.sparsify.All()
        assert state.step == 0
        return
    assert frame.nbytes <= limit
    if state.residual is not None:
        assert np.array_equal(state.residual, kept(kept(x) - gradwire.decode(frame)))


@settings(max_examples=500)
@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_no_frame(data):
    try:
        frame = gradwire.Frame(data)
    except gradwire.GradwireError:
        return
    # Valid by accident: then it is a frame in every respect.
    assert bytes(frame) == data
