"""Laws of the quantizers that fit their codes to values, or draw: what hypothesis cannot break."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import gradwire
from gradwire.memory import NoMemory, Residual
from gradwire.quantize import Exponent, Float8
from gradwire.sparsify import All, Threshold, TopK
from tests.support import FITTED, go_together, kept

# Sums of a few of them stay finite; subnormals, negative zeros and heavy ties are all there.
floats = st.one_of(
    st.floats(-(2.0**120), 2.0**120, width=32), st.sampled_from([0.0, -0.0, 1.0, -1.0, 0.5, 1e-45])
)
tensors = hnp.arrays(np.float32, st.integers(0, 300), elements=floats)
codecs = st.sampled_from(
    [
        gradwire.Codec(sparsify=sparsify, quantize=quantize, memory=memory)
        for sparsify in (All(), Threshold(0.5), TopK(ratio=0.2))
        for quantize in FITTED
        for memory in (NoMemory(), Residual(), Residual(decay=0.9))
        if go_together(quantize, memory)
    ]
)


@st.composite
def steps(draw):
    n = draw(st.integers(0, 200))
    return draw(st.lists(hnp.arrays(np.float32, n, elements=floats), min_size=1, max_size=4))


@given(codecs, steps())
def test_nothing_is_lost(codec, steps):
    state = codec.init_state(steps[0].size)
    for x in steps:
        before = state.residual
        total = x if before is None else kept(x + np.float32(codec.memory.decay) * before)
        sent = gradwire.decode(codec.encode(x, state))
        assert np.isfinite(sent).all()
        if before is not None:
            assert np.array_equal(state.residual, kept(total - sent))


@given(codecs, tensors)
def test_frames_say_what_they_hold(codec, x):
    frame = codec.encode(x, codec.init_state(x.size))
    expected = np.zeros(x.size, np.float32)
    expected[frame.indices()] = frame.values()
    assert gradwire.decode(frame).tobytes() == expected.tobytes()
    assert frame.nbytes <= codec.max_encoded_len(x.size)
    assert gradwire.Frame(bytes(frame)) == frame
    out = np.ones(x.size, np.float32)
    gradwire.decode_add(frame, out, 0.5)
    assert np.array_equal(out, np.float32(1) + expected * np.float32(0.5))


@given(codecs, tensors)
def test_what_was_decoded_is_encoded_without_loss(codec, x):
    """Rounding is the identity on what it gives, where codes depend on a peak alone."""
    if not isinstance(codec.quantize, Float8 | Exponent) or codec.sparsify != All():
        return
    once = gradwire.decode(codec.encode(x, codec.init_state(x.size)))
    twice = gradwire.decode(codec.encode(once, codec.init_state(x.size)))
    assert np.array_equal(once, twice)


@pytest.mark.parametrize(
    ("part", "options", "error"),
    [
        (Float8, {"format": "e3m4"}, ValueError),
        (Float8, {"rounding": "up"}, ValueError),
        (Float8, {"block": 0}, ValueError),
        (Float8, {"block": 2**32}, ValueError),
        (Float8, {"block": 256.0}, TypeError),
        (Float8, {"seed": -1}, ValueError),
        (Exponent, {"seed": 2**64}, ValueError),
        (Exponent, {"seed": "1"}, TypeError),
    ],
)
def test_options_out_of_range_are_refused(part, options, error):
    with pytest.raises(error):
        part(**options)
