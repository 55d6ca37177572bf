"""SIMD levels of the core within one process."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import gradwire
from gradwire import _native


def test_a_level_is_in_use_in_one_thread_until_the_call_ends():
    usual = gradwire.simd_level()

    def within():
        with ThreadPoolExecutor(1) as other:
            return gradwire.simd_level(), other.submit(gradwire.simd_level).result()

    assert _native.at_level("scalar", within) == ("scalar", usual)
    assert gradwire.simd_level() == usual
    with pytest.raises(ZeroDivisionError):
        _native.at_level("scalar", divmod, 1, 0)
    assert gradwire.simd_level() == usual
    with pytest.raises(ValueError, match='this CPU has no SIMD level "sse"'):
        _native.at_level("sse", gradwire.simd_level)


def test_frames_and_states_do_not_depend_on_the_level_in_use():
    codec, x = gradwire.qsgd(), np.random.default_rng(3).standard_normal(70_001, np.float32)
    states = [codec.init_state(x.size) for _ in range(2)]
    for _ in range(2):
        frame = codec.encode(x, states[0])
        assert _native.at_level("scalar", codec.encode, x, states[1]) == frame
        decoded = _native.at_level("scalar", gradwire.decode, frame)
        assert decoded.tobytes() == gradwire.decode(frame).tobytes()
