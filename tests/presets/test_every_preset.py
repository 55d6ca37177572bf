"""Tensors that break careless code, with every preset; its laws are in tests/test_laws.py."""

import numpy as np
import pytest

import gradwire
from tests.presets.conservation import holds
from tests.presets.examples import DEGENERATE, made, names, presets


@pytest.mark.parametrize("preset", presets, ids=names)
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
