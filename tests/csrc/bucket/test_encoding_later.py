"""An encode in two halves, where memories have one buffer: what comes of it is what one makes."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from gradwire import memory, quantize, sparsify
from tests.csrc.bucket.pair import Pair, heavy
from tests.csrc.bucket.test_encoding import DTYPES, LENGTHS, SELECTING, compose, some
from tests.csrc.emulated.kernels import Kernels

KEPT: list[memory.Memory] = [
    memory.Residual(decay=0.9, low_memory=True),
    memory.Residual(low_memory=True, dtype="bfloat16", seed=3),
    memory.AdamCorrection(low_memory=True),
]
DONE, CHANGED, UNKNOWN = range(3)


def halves(pair: Pair, gradients: list[np.ndarray], divisor: float = 1.0) -> None:
    """Encode in two halves on the device and at once on the other side; compare after each."""
    outcomes = pair.device.encode(gradients, divisor=divisor, later=True)
    assert [outcome.status for outcome in outcomes] == ["ok"] * len(gradients)
    pair.compare()
    inputs = [
        x.astype(np.float32) / np.float32(divisor) if divisor != 1.0 else x for x in gradients
    ]
    for codec, state, x, outcome in zip(pair.codecs, pair.states, inputs, outcomes, strict=True):
        assert bytes(codec.encode(x, state)) == outcome.frame
    frames = [outcome.frame for outcome in outcomes]
    assert pair.device.settle(frames, divisor=divisor) == [DONE] * len(frames)
    pair.compare()


@pytest.mark.parametrize("kept", KEPT, ids=repr)
@pytest.mark.parametrize("part", some(SELECTING), ids=repr)
def test_two_halves_come_to_what_one_encode_does(
    kernels: Kernels, rng: np.random.Generator, part: sparsify.Sparsifier, kept: memory.Memory
) -> None:
    for quantizer in (quantize.Float32(), quantize.TwoMeans(column=64)):
        codec = compose(sparsify=part, quantize=quantizer, memory=kept)
        numels = [*LENGTHS, 5000]
        pair = Pair(kernels, [codec] * len(numels), numels)
        for _ in range(2):
            halves(pair, [heavy(rng, n) for n in numels])
        pair.encode([heavy(rng, n) for n in numels])


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
@pytest.mark.parametrize("divisor", [1.0, 3.0])
def test_every_type_of_elements(
    kernels: Kernels, rng: np.random.Generator, dtype: type, divisor: float
) -> None:
    codecs = [compose(sparsify=part, memory=KEPT[0]) for part in SELECTING]
    numels = [2100] * len(codecs)
    pair = Pair(kernels, codecs, numels)
    for _ in range(2):
        halves(pair, [heavy(rng, n).astype(dtype) for n in numels], divisor)


def test_a_first_half_that_is_dropped_leaves_no_trace(
    kernels: Kernels, rng: np.random.Generator
) -> None:
    pair = Pair(kernels, [compose(sparsify=sparsify.SID(0.02), memory=KEPT[1])] * 2, [900, 70])
    pair.encode([heavy(rng, n) for n in pair.numels])
    outcomes = pair.device.encode([heavy(rng, n) for n in pair.numels], later=True)
    pair.device.rollback()
    pair.compare()
    assert pair.device.settle([outcome.frame for outcome in outcomes]) == [UNKNOWN] * 2
    pair.compare()
    halves(pair, [heavy(rng, n) for n in pair.numels])


def test_another_frame_than_the_first_half_has_written_changes_nothing(
    kernels: Kernels, rng: np.random.Generator
) -> None:
    pair = Pair(kernels, [compose(sparsify=sparsify.TopK(k=9), memory=KEPT[0])] * 2, [300] * 2)
    outcomes = pair.device.encode([heavy(rng, 300) for _ in range(2)], later=True)
    frames = [outcome.frame for outcome in outcomes]
    twin = copy.deepcopy(pair.device.states)
    assert pair.device.settle([frames[1], frames[0]]) == [UNKNOWN] * 2
    pair.compare()
    for broken in (frames[1][:-1], frames[1][:50] + b"\xff" + frames[1][51:]):
        for state, kept in zip(pair.device.states, twin, strict=True):
            state.pending = kept.pending
        assert pair.device.settle([frames[0], broken]) == [UNKNOWN] * 2
        pair.compare()


def test_what_is_not_finite_any_more_is_dropped(kernels: Kernels, rng: np.random.Generator) -> None:
    pair = Pair(kernels, [compose(sparsify=sparsify.TopK(k=9), memory=KEPT[0])] * 2, [300] * 2)
    gradients = [heavy(rng, 300) for _ in range(2)]
    outcomes = pair.device.encode(gradients, later=True)
    gradients[0][7] = np.nan
    found = pair.device.settle([outcome.frame for outcome in outcomes])
    assert found == [CHANGED, DONE]
    kept = pair.device.state_dict(0)
    assert kept["step"] == 0
    assert np.isfinite(kept["residual"]).all()
    assert kept["residual"][7] == 0
