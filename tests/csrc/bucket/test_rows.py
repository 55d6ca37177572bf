"""Whole rows of 1024 entries are read in another way than what is left: the same bytes."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import gradwire
from gradwire import memory, quantize, sparsify
from tests.csrc.bucket.pair import Pair, heavy
from tests.csrc.emulated.kernels import Kernels
from tests.csrc.parts import MEMORIES, PRESETS
from tests.presets.examples import made_for_kernels

ROW, TILE = 1024, 2048
LENGTHS = (TILE, 2 * TILE, 3 * ROW, TILE + 1)
DTYPES = (np.float32, np.float64, np.float16, ml_dtypes.bfloat16)
SELECTING = (*(sparsify.TopK(ratio=0.05), sparsify.RandomK(ratio=0.1), sparsify.SID(0.02)),)


def codec(part: sparsify.Sparsifier, kept: memory.Memory) -> gradwire.Codec:
    return gradwire.Codec(sparsify=part, quantize=quantize.Float32(), memory=kept)


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda each: each.__name__)
@pytest.mark.parametrize("kept", MEMORIES, ids=repr)
def test_whole_rows_have_the_bytes_of_the_core(
    rng: np.random.Generator, kept: memory.Memory, dtype: type, offset: int
) -> None:
    parts = [sparsify.All(), *SELECTING] if dtype is np.float32 else SELECTING[:2]
    codecs, numels = [], []
    for part in parts:
        for numel in LENGTHS if dtype is np.float32 else LENGTHS[:1]:
            try:
                codecs.append(codec(part, kept))
            except (TypeError, ValueError):  # no such pair
                continue
            numels.append(numel)
    pair = Pair(codecs, numels, offset=offset)
    for _ in range(2):
        pair.encode([heavy(rng, n).astype(dtype) for n in numels])


@pytest.mark.parametrize("part", SELECTING[:1] + SELECTING[2:], ids=repr)
def test_a_row_with_more_candidates_than_fit_is_read_again(
    rng: np.random.Generator, part: sparsify.Sparsifier
) -> None:
    numel = 70 * ROW + 9
    pair = Pair([codec(part, memory.Residual())], [numel])
    for step in range(3):
        x = heavy(rng, numel)
        x[(3 + 20 * step) * ROW :][:ROW] *= 1e4
        x[-300:] *= 1e4  # of one that is not whole
        pair.encode([x])


def test_a_bucket_takes_as_many_launches_whatever_is_in_it(
    kernels: Kernels, rng: np.random.Generator
) -> None:
    numels = [900 + i for i in range(len(PRESETS))]
    presets = zip(PRESETS.values(), numels, strict=True)
    codecs = [made_for_kernels(preset, (n,)) for preset, n in presets]
    narrow = codec(sparsify.TopK(ratio=0.05), memory.Residual(low_memory=True))
    fitted = gradwire.Codec(
        sparsify=sparsify.TopK(ratio=0.5),
        quantize=quantize.Float16(scaled=True),
        memory=memory.NoMemory(),
    )
    pair = Pair([*codecs, narrow, fitted], [*numels, 3000, 9000])
    for limits in (None, [2000] * len(pair.codecs)):
        before = kernels.launches
        pair.start([heavy(rng, n) for n in pair.numels], limits=limits)
        # The last one copies frames behind one another.
        assert kernels.launches - before == 7
