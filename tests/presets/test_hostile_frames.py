"""Frames of every preset, damaged: the answer is a typed error, or a tensor of finite values."""

import numpy as np
import pytest

import gradwire
from tests.presets.examples import gradient, made, names, presets
from tests.support import forge

SHAPE = (12, 16)
NUMEL = 192

pytestmark = pytest.mark.parametrize("preset", presets, ids=names)


def frame_of(preset, make=made) -> bytes:
    codec = make(preset, SHAPE)
    state = codec.init_state(NUMEL, name="w")
    codec.encode(gradient(NUMEL), state)
    return bytes(codec.encode(gradient(NUMEL, 1), state))


def test_every_prefix_is_truncated(preset):
    data = frame_of(preset)
    for length in range(len(data)):
        with pytest.raises(gradwire.TruncatedFrameError):
            gradwire.decode(data[:length])


def test_every_flipped_bit_is_found(preset):
    data = frame_of(preset)
    for bit in range(0, 8 * len(data), 3):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(gradwire.GradwireError):
            gradwire.decode(flipped)


def test_forged_frames_are_refused_or_finite(preset):
    data = frame_of(preset)
    rng = np.random.default_rng(5)
    out = np.empty(NUMEL, np.float32)
    for _ in range(1500):
        at = int(rng.integers(4, len(data)))
        if 12 <= at < 16:
            continue
        field = rng.integers(0, 256, int(rng.integers(1, 5)), np.uint8).tobytes()
        field = field[: (12 - at if at < 12 else len(data) - at)]
        forged = forge(data, at, field)
        out.fill(7)
        try:
            gradwire.decode(forged, out)
        except (gradwire.GradwireError, ValueError):
            # A ValueError: a frame of another number of elements than `out`.
            assert (out == 7).all()
        else:
            assert np.isfinite(out).all()
