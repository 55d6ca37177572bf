"""Laws of every preset: a new one is tested by being registered."""

import numpy as np
import pytest

import gradwire
from gradwire.memory import NoMemory
from tests.presets.conservation import holds
from tests.presets.examples import DEGENERATE, SHAPE, gradient, made, names, presets, steps

NUMEL = SHAPE[0] * SHAPE[1]

pytestmark = pytest.mark.parametrize("preset", presets, ids=names)


def test_the_example_can_be_written_down(preset):
    codec = eval(f"gradwire.{preset.call}", {"gradwire": gradwire})
    assert codec == preset.build(**preset.example)


def test_nothing_is_lost(preset):
    codec = made(preset)
    state = codec.init_state(NUMEL, name="w", stream=1)
    for x in steps(NUMEL, 5):
        before, seen = state.residual, codec.preview(x, state)
        frame = codec.encode(x, state)
        sent = gradwire.decode(frame)
        assert frame.nbytes <= codec.max_encoded_len(NUMEL)
        assert holds(codec, seen, sent, before, state.residual, frame.indices())


def test_degenerate_tensors(preset):
    for what, x in DEGENERATE.items():
        codec = made(preset, x.shape)
        state = codec.init_state(x.size, name="w")
        for _ in range(3):
            before, seen = state.residual, codec.preview(x, state)
            frame = codec.encode(x, state)
            sent = gradwire.decode(frame)
            assert np.isfinite(sent).all(), what
            assert frame.nbytes <= codec.max_encoded_len(x.size), what
            assert holds(codec, seen, sent, before, state.residual, frame.indices()), what
            if not seen.any():
                assert not sent.any(), what


def test_bytes_do_not_depend_on_threads(preset):
    x = np.resize(gradient(4096), 1 << 17)
    frames = []
    before = gradwire.get_num_threads()
    try:
        for threads in (1, 2, 3):
            gradwire.set_num_threads(threads)
            codec = made(preset, (512, 256))
            state = codec.init_state(x.size, name="w")
            frames.append([codec.encode(x * step, state) for step in (1, 2)])
    finally:
        gradwire.set_num_threads(before)
    assert frames[0] == frames[1] == frames[2]


def test_codecs_with_a_memory_need_a_state(preset):
    codec = made(preset)
    if isinstance(codec.memory, NoMemory):
        return
    with pytest.raises(ValueError, match="state is missing"):
        codec.encode(gradient(NUMEL))
