"""Frames and states of the kernels equal those of the core, byte for byte, step by step."""

from __future__ import annotations

import dataclasses
import itertools
import warnings
from collections.abc import Iterable
from typing import TypeVar

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

import gradwire
from gradwire import memory, quantize, sparsify
from tests.csrc.bucket.pair import LAWS, Pair, heavy
from tests.csrc.emulated.kernels import Kernels
from tests.csrc.emulated.operators import SANITIZED
from tests.csrc.parts import MEMORIES, PRESETS, QUANTIZERS, SPARSIFIERS
from tests.presets.examples import made_for_kernels
from tests.support import CODINGS

T = TypeVar("T")

CHUNK = 65536
"""Entries of a tensor that a block reads at a time."""

LENGTHS = (0, 1, 77, 2049)
SELECTING = (
    *(sparsify.All(), sparsify.Threshold(0.5), sparsify.TopK(ratio=0.05), sparsify.SID(0.02)),
    *(sparsify.SampledTopK(0.05), sparsify.ChunkTopK(50, 2), sparsify.RandomK(ratio=0.1)),
)
DTYPES = (np.float32, np.float64, np.float16, ml_dtypes.bfloat16)


def some(items: Iterable[T]) -> list[T]:
    """All of them, or under the sanitizers, which are slow, one in four."""
    return list(items)[:: 4 if SANITIZED else 1]


def preset(name: str, numel: int) -> gradwire.Codec:
    return made_for_kernels(PRESETS[name], (numel,))


def compose(**parts: object) -> gradwire.Codec:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return gradwire.Codec(**parts)  # type: ignore[arg-type]


def keeping(part: sparsify.Sparsifier) -> gradwire.Codec:
    """A codec of this sparsifier, exact, with a memory if it may have one."""
    scaled = getattr(part, "scaled", False)
    kept: memory.Memory = memory.NoMemory() if scaled else memory.Residual()
    return gradwire.Codec(sparsify=part, quantize=quantize.Float32(), memory=kept)


def immense(rng: np.random.Generator, numel: int) -> NDArray[np.float32]:
    """A few entries beyond the largest bfloat16."""
    x = heavy(rng, numel)
    x[:: numel // 5] = np.float32(3.4e38)
    return x


def lengths_for(part: sparsify.Sparsifier, lengths: tuple[int, ...]) -> list[int]:
    """The lengths, or for matrices so many rows."""
    columns = getattr(part, "columns", None) or 1
    return [columns * -(-length // columns) for length in lengths]


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_has_the_bytes_of_the_core(rng: np.random.Generator, name: str) -> None:
    numels = [*LENGTHS, 5000]
    pair = Pair([preset(name, n) for n in numels], numels)
    for _ in range(4):
        pair.encode([heavy(rng, n) for n in numels])


@pytest.mark.parametrize("name", some(PRESETS))
def test_tensors_of_several_chunks_are_worked_on_by_teams(
    rng: np.random.Generator, name: str
) -> None:
    numels = [2 * CHUNK + 801, 300, CHUNK]
    pair = Pair([preset(name, n) for n in numels], numels)
    for _ in range(3):
        pair.encode([heavy(rng, n) for n in numels])


@pytest.mark.parametrize("processors", [1, 3, 20])
def test_frames_do_not_depend_on_how_many_blocks_work(
    kernels: Kernels, rng: np.random.Generator, processors: int
) -> None:
    """A launch has no more blocks than have work, as all of them have to be resident at once."""
    kernels.configure(processors=processors)
    numels = [0, 300, CHUNK, 2 * CHUNK + 801]
    Pair([keeping(sparsify.TopK(ratio=0.01))] * 4, numels).encode([heavy(rng, n) for n in numels])


@pytest.mark.parametrize("part", some(SPARSIFIERS), ids=repr)
@pytest.mark.parametrize("law", ["heavy"] if SANITIZED else LAWS)
def test_every_sparsifier_selects_as_the_core_does(
    rng: np.random.Generator, part: sparsify.Sparsifier, law: str
) -> None:
    numels = lengths_for(part, LENGTHS)
    pair = Pair([keeping(part)] * len(numels), numels)
    for _ in range(3):
        pair.encode([LAWS[law](rng, n) for n in numels])


@pytest.mark.parametrize("law", some(["many ties", "all equal", "layers", "jumps"]))
@pytest.mark.parametrize(
    "part",
    [
        *(sparsify.TopK(ratio=0.3), sparsify.TopK(k=7), sparsify.SID(0.001), sparsify.SID(0.1)),
        *(sparsify.SID(0.01, band=None), sparsify.SampledTopK(0.001)),
    ],
    ids=repr,
)
def test_teams_search_again_where_a_bound_was_of_no_use(
    rng: np.random.Generator, part: sparsify.Sparsifier, law: str
) -> None:
    pair = Pair([keeping(part)], [CHUNK + 20_001])
    for _ in range(3):
        pair.encode([LAWS[law](rng, pair.numels[0])])


@pytest.mark.parametrize("kept", MEMORIES, ids=repr)
@pytest.mark.parametrize("part", some(SELECTING), ids=repr)
def test_every_memory_is_kept_to_the_last_bit(
    rng: np.random.Generator, part: sparsify.Sparsifier, kept: memory.Memory
) -> None:
    if isinstance(part, sparsify.All) and getattr(kept, "masking", False):
        pytest.skip("dense momentum correction has no masking")
    numels = [*LENGTHS]
    for quantizer in (quantize.Float32(), quantize.Float8(seed=3, rounding="stochastic")):
        codec = compose(sparsify=part, quantize=quantizer, memory=kept)
        pair = Pair([codec] * len(numels), numels)
        for step, law in enumerate(["heavy", "ends of the range", "heavy", "zeros"]):
            if isinstance(kept, memory.AdamCorrection):
                for state in (*pair.here, *pair.there):
                    state.learning_rate = 0.1 / (step + 1)
            pair.encode([LAWS[law](rng, n) for n in numels])


@pytest.mark.parametrize("law", [*LAWS, "immense"])
def test_a_memory_of_bfloat16_is_rounded_by_the_draws_of_the_core(
    rng: np.random.Generator, law: str
) -> None:
    kept = [memory.Residual(0.9, True, 2), memory.LowPass(0.3, True)]
    kept += [memory.LowPass(1, True)]
    parts = [sparsify.All(), sparsify.TopK(ratio=0.05), sparsify.ChunkTopK(50, 2)]
    quantizers = [quantize.Float32(), quantize.TwoMeans()]
    codecs = [
        compose(sparsify=p, memory=m, quantize=q) for p in parts for m in kept for q in quantizers
    ]
    numels = [2049 + 3 * i for i in range(len(codecs))]
    pair = Pair(codecs, numels)
    draw = (LAWS | {"immense": immense})[law]
    for sign in (1, -1):  # so that no sum is infinite
        pair.encode([sign * draw(rng, n) for n in numels])


@pytest.mark.parametrize("name", some(PRESETS))
def test_every_preset_has_the_bytes_of_the_core_with_a_residual_of_bfloat16(
    rng: np.random.Generator, name: str
) -> None:
    codecs = [preset(name, n) for n in LENGTHS]
    kept = codecs[0].memory
    if not isinstance(kept, memory.Residual | memory.LowPass):
        pytest.skip("keeps something else")
    kept = dataclasses.replace(kept, low_memory=True, seed=5)
    pair = Pair([dataclasses.replace(c, memory=kept) for c in codecs], LENGTHS)
    for _ in range(3):
        pair.encode([heavy(rng, n) for n in LENGTHS])
    pair.rollback()
    pair.encode([heavy(rng, n) for n in LENGTHS])


@pytest.mark.parametrize("quantizer", some(QUANTIZERS), ids=repr)
def test_every_quantizer_leaves_its_rounding_in_the_memory(
    rng: np.random.Generator, quantizer: quantize.Quantizer
) -> None:
    codecs = []
    feeding = (memory.Residual(), memory.LowPass(0.3))
    memories = feeding if quantizer.contracts else (memory.NoMemory(),)
    for part, kept in itertools.product(SELECTING, memories):
        try:
            codecs.append(compose(sparsify=part, quantize=quantizer, memory=kept))
        except ValueError:  # a magnitude that the sparsifier does not tell
            continue
    pair = Pair(codecs, [2500] * len(codecs))
    for _ in range(3):
        pair.encode([heavy(rng, 2500) for _ in codecs])


@pytest.mark.parametrize("coding", CODINGS)
def test_every_coding_of_positions(rng: np.random.Generator, coding: str) -> None:
    parts = [sparsify.TopK(ratio=ratio) for ratio in (0.001, 0.02, 0.4, 1.0)]
    codecs = [compose(sparsify=part, indices=coding) for part in [*parts, *SELECTING]]
    pair = Pair(codecs, [4000] * len(codecs))
    for _ in range(2):
        pair.encode([heavy(rng, 4000) for _ in codecs])


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
@pytest.mark.parametrize("divisor", [1.0, 1024.0, 3.0])
def test_every_type_of_elements(rng: np.random.Generator, dtype: type, divisor: float) -> None:
    codecs = [keeping(part) for part in SELECTING]
    numels = [2100] * len(codecs)
    pair = Pair(codecs, numels)
    for _ in range(2):
        pair.encode([heavy(rng, n).astype(dtype) for n in numels], divisor=divisor)


def test_a_frame_fills_its_memory_to_the_last_byte_and_no_further(rng: np.random.Generator) -> None:
    # Which a sanitizer sees: bits are put into words, and a frame may end in the middle of one.
    parts = [quantize.Float32(), quantize.BFloat16(), quantize.Uniform(3)]
    codecs = [
        compose(sparsify=each, quantize=part, indices=coding, memory=memory.NoMemory())
        for each in (sparsify.TopK(ratio=0.05), sparsify.RandomK(ratio=0.1), *SELECTING[5:6])
        for part in parts
        for coding in CODINGS
    ]
    numels = [int(n) for n in rng.integers(30, 200, len(codecs))]
    gradients = [heavy(rng, n).astype(np.float64) for n in numels]
    limits = [len(frame) for frame in Pair(codecs, numels).encode(gradients)]
    assert {limit % 4 for limit in limits} == {0, 1, 2, 3}
    Pair(codecs, numels).encode(gradients, limits=limits)


def test_the_number_of_launches_does_not_depend_on_the_number_of_tensors(
    kernels: Kernels, rng: np.random.Generator
) -> None:
    launches = []
    for count in (2, 120):
        numels = [int(n) for n in rng.integers(0, 200, count - 1)] + [CHUNK + 1]
        codecs = [keeping(SELECTING[i % len(SELECTING)]) for i in range(count)]
        pair = Pair(codecs, numels)
        for _ in range(2):
            before = kernels.launches
            pair.encode([heavy(rng, n) for n in numels])
            launches.append(kernels.launches - before)
    assert max(launches) <= 12
    assert launches[2] == launches[3] <= launches[0] + 3  # a kind of frame may need one of its own
