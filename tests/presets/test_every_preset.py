"""Laws of every preset: a new one is tested by being registered."""

import copy
import json
import pickle

import numpy as np
import pytest

import gradwire
from gradwire.memory import NoMemory
from tests.presets.conservation import holds
from tests.presets.examples import DEGENERATE, SHAPE, gradient, made, names, presets, steps
from tests.support import same_state

NUMEL = SHAPE[0] * SHAPE[1]

pytestmark = pytest.mark.parametrize("preset", presets, ids=names)


def test_the_example_can_be_written_down(preset):
    codec = eval(f"gradwire.{preset.call}", {"gradwire": gradwire})
    assert codec == preset.build(**preset.example)


def test_configurations_round_trip(preset):
    for codec in (preset.build(**preset.example), made(preset)):
        assert gradwire.Codec.from_config(json.loads(json.dumps(codec.get_config()))) == codec
        assert eval(repr(codec), {"gradwire": gradwire}) == codec
        assert pickle.loads(pickle.dumps(codec)) == copy.deepcopy(codec) == codec


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


def test_what_is_not_finite_leaves_the_state_alone(preset):
    codec = made(preset)
    state = codec.init_state(NUMEL, name="w")
    for x in steps(NUMEL, 2):
        codec.encode(x, state)
    saved = state.state_dict()
    for bad in (np.nan, np.inf, -np.inf):
        x = gradient(NUMEL, 9)
        x[[77, 1500]] = bad
        with pytest.raises(gradwire.NonFiniteError) as caught:
            codec.encode(x, state)
        assert (caught.value.count, caught.value.first, caught.value.name) == (2, 77, "w")
        assert same_state(state.state_dict(), saved)


def test_rolling_back_is_exact(preset):
    codec = made(preset)
    state = codec.init_state(NUMEL, name="w")
    for x in steps(NUMEL, 3):
        codec.encode(x, state)
    saved, x = state.state_dict(), gradient(NUMEL, 7)
    frame = codec.encode(x, state)
    state.rollback()
    assert same_state(state.state_dict(), saved)
    assert codec.encode(x, state) == frame


def test_a_saved_state_goes_on_bit_for_bit(preset):
    codec = made(preset)
    whole = codec.init_state(NUMEL, name="w", stream=2)
    tensors = steps(NUMEL, 6)
    for x in tensors[:3]:
        codec.encode(x, whole)
    resumed = codec.init_state(NUMEL, name="w", stream=2)
    resumed.load_state_dict(whole.state_dict())
    for x in tensors[3:]:
        assert codec.encode(x, whole) == codec.encode(x, resumed)
    assert same_state(whole.state_dict(), resumed.state_dict())


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


def test_every_dtype_is_taken(preset):
    codec = made(preset)
    for dtype in (np.float16, np.float64):
        x = gradient(NUMEL).astype(dtype)
        frame = codec.encode(x, codec.init_state(NUMEL, name="w"))
        same = codec.encode(x.astype(np.float32), codec.init_state(NUMEL, name="w"))
        assert frame.dtype == np.dtype(dtype).name
        assert gradwire.decode(frame).tobytes() == gradwire.decode(same).tobytes()


def test_frames_fit_their_limit_or_say_so(preset):
    codec = made(preset)
    x = gradient(NUMEL)
    full = codec.encode(x, codec.init_state(NUMEL, name="w"))
    state = codec.init_state(NUMEL, name="w")
    limit = 48 + (full.nbytes - 48) // 2
    saved = state.state_dict()
    seen = codec.preview(x, state)
    before = state.residual
    try:
        frame = codec.encode(x, state, max_nbytes=limit)
    except ValueError:
        # Where all ranks must send the same entries, or every entry goes, nothing can be left out.
        assert same_state(state.state_dict(), saved)
        return
    assert frame.nbytes <= limit
    assert holds(codec, seen, gradwire.decode(frame), before, state.residual, frame.indices())


def test_codecs_with_a_memory_need_a_state(preset):
    codec = made(preset)
    if isinstance(codec.memory, NoMemory):
        return
    with pytest.raises(ValueError, match="state is missing"):
        codec.encode(gradient(NUMEL))


def test_adding_is_adding_what_was_decoded(preset):
    codec = made(preset)
    frame = codec.encode(gradient(NUMEL), codec.init_state(NUMEL, name="w"))
    out = gradient(NUMEL, 3)
    expected = out.copy()
    positions = frame.indices()
    expected[positions] += frame.values() * np.float32(0.5)
    gradwire.decode_add(frame, out, 0.5)
    assert np.array_equal(out, expected)
