"""Another thread writes to the tensor during encodes: forbidden, and never worse than an error."""

import threading

import numpy as np
import pytest

import gradwire
from gradwire.memory import NoMemory, Residual
from gradwire.quantize import Codebook, Float16
from gradwire.sparsify import All, ChunkTopK, Threshold
from tests.presets.examples import made, presets
from tests.support import FITTED, MEMORIES, QUANTIZERS, SPARSIFIERS, go_together, name_of

N = 150_000
WRITTEN = [np.nan, np.inf, 0.0, 3e38, 1e-40, 1.0, -2.0]

CODECS = [
    *(made(preset, (N // 100, 100)) for preset in presets),
    *(gradwire.Codec(sparsify=sparsify, memory=NoMemory()) for sparsify in SPARSIFIERS),
    *(
        gradwire.Codec(sparsify=All(), quantize=quantize, memory=memory)
        for quantize in (*QUANTIZERS, *FITTED)
        for memory in MEMORIES
        if go_together(quantize, memory)
    ),
    gradwire.topk(0.3, memory=Residual(low_memory=True)),
    gradwire.Codec(sparsify=Threshold(0.0), quantize=Float16(), memory=NoMemory()),
    gradwire.Codec(sparsify=ChunkTopK(64, 5), quantize=Codebook(4), memory=NoMemory()),
]


def scribble(x, good, stop):
    """Write runs of all sorts of values to x, and put the good ones back now and then."""
    rng = np.random.default_rng(1)
    while not stop.is_set():
        at = int(rng.integers(N))
        run = x[at : at + int(rng.integers(1, 2000))]
        np.copyto(run, np.float32(rng.choice(WRITTEN)))
        if rng.random() < 0.5:
            np.copyto(x, good)


@pytest.mark.parametrize("codec", CODECS, ids=name_of)
def test_frames_can_be_read_or_the_error_says_what_happened(codec):
    good = np.random.default_rng(0).standard_normal(N).astype(np.float32)
    x, stop, done, errors = good.copy(), threading.Event(), 0, []
    state = codec.init_state(N, name="w")
    writer = threading.Thread(target=scribble, args=(x, good, stop))
    writer.start()
    try:
        for step in range(60):
            if step % 2 == 0:
                np.copyto(x, good)
            try:
                limit = 20_000 if step % 3 == 0 and codec.sparsify != All() else None
                frame = codec.encode(x, state, max_nbytes=limit)
            except (gradwire.NonFiniteError, gradwire.InputChangedError) as error:
                errors.append(error)
            else:
                done += 1
                assert np.isfinite(gradwire.decode(frame)).all()
                frame.indices()
    finally:
        stop.set()
        writer.join()
    assert state.step == done
    for each in errors:
        non_finite = isinstance(each, gradwire.NonFiniteError)
        assert ("non-finite" if non_finite else "changed while it was being encoded") in str(each)
        assert getattr(each, "count", 1) > 0
    if state.residual is not None:
        assert np.isfinite(state.residual).all()
