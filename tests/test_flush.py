"""Sending what was left."""

import numpy as np
import pytest

import gradwire
from gradwire.memory import NoMemory
from tests.support import CODECS, name_of

WITH_MEMORY = [codec for codec in CODECS if codec.memory != NoMemory()]


@pytest.mark.parametrize("codec", WITH_MEMORY[::7], ids=name_of)
def test_a_flush_sends_the_residual_exactly_and_can_be_undone(codec):
    x = np.random.default_rng(3).standard_normal(999).astype(np.float32)
    state = codec.init_state(x.size)
    codec.encode(x, state)
    left = state.residual
    frame = codec.flush(state)
    assert np.array_equal(gradwire.decode(frame), left)
    assert (frame.dtype, frame.count, frame.nbytes) == ("float32", 999, 48 + 4 * 999)
    assert state.step == 2
    assert not state.residual.any()
    state.rollback()
    assert np.array_equal(state.residual, left)


def test_frames_and_flush_come_to_all_that_was_given():
    codec = gradwire.topk(0.01)
    state = codec.init_state(4096)
    rng = np.random.default_rng(4)
    given, sent = np.zeros(4096), np.zeros(4096)
    for _ in range(20):
        # Multiples of 1/64 add up without rounding.
        x = rng.integers(-64, 65, 4096).astype(np.float32) / 64
        given += x
        sent += gradwire.decode(codec.encode(x, state))
    sent += gradwire.decode(codec.flush(state))
    assert np.array_equal(sent, given)


def test_without_a_memory_there_is_nothing_to_flush():
    codec = gradwire.dense()
    with pytest.raises(ValueError, match="no memory"):
        codec.flush(codec.init_state(5))


def test_a_state_of_another_codec_is_refused():
    with pytest.raises(ValueError, match="belongs to another codec"):
        gradwire.topk(0.1).flush(gradwire.sidco(0.1).init_state(5))
    with pytest.raises(TypeError, match="state must be"):
        gradwire.topk(0.1).flush(None)
