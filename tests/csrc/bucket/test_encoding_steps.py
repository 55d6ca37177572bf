"""What comes between steps: frames that are trimmed, steps undone, other amounts, failures."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import gradwire
from gradwire import memory, quantize, sparsify
from gradwire.torch.backends.cuda import structs
from tests.csrc.bucket.pair import Pair, heavy
from tests.csrc.bucket.test_encoding import CHUNK, SELECTING, compose, keeping, preset, some
from tests.csrc.parts import PRESETS
from tests.support import CODINGS

HEADER = 48


@pytest.mark.parametrize("coding", some(CODINGS))
@pytest.mark.parametrize("part", [p for p in SELECTING if p.kind != "all"], ids=repr)
def test_frames_that_are_too_long_are_trimmed_alike(
    rng: np.random.Generator, part: sparsify.Sparsifier, coding: str
) -> None:
    codecs = [
        compose(sparsify=part, quantize=q, indices=coding)
        for q in (quantize.Float32(), quantize.Uniform(4, 64))
    ]
    pair = Pair(codecs, [3000] * 2)
    for share in (None, 0.9, 0.5, 0.1, 0.0):
        gradients = [heavy(rng, 3000) for _ in codecs]
        longest = [len(frame) for frame in pair.encode(gradients)]
        limits = None if share is None else [HEADER + int(share * (n - HEADER)) for n in longest]
        pair.encode(gradients, limits=limits)


@pytest.mark.parametrize("name", some(PRESETS))
def test_a_step_that_is_undone_leaves_no_trace(rng: np.random.Generator, name: str) -> None:
    numels = [1500, 10, 0]
    pair = Pair([preset(name, n) for n in numels], numels)
    pair.encode([heavy(rng, n) for n in numels])
    for _ in range(2):
        gradients = [heavy(rng, n) for n in numels]
        frames = pair.encode(gradients)
        pair.rollback()
        assert pair.encode(gradients) == frames
        pair.rollback()
        pair.encode([heavy(rng, n) for n in numels])


@pytest.mark.parametrize(
    "make",
    [
        lambda ratio: sparsify.TopK(ratio=ratio),
        lambda ratio: sparsify.SID(ratio),
        lambda ratio: sparsify.SampledTopK(ratio),
    ],
    ids=["topk", "sid", "sampled_topk"],
)
def test_a_schedule_changes_the_amount_between_steps(
    rng: np.random.Generator, make: Callable[[float], sparsify.Sparsifier]
) -> None:
    pair = Pair([keeping(make(0.25))], [4000])
    for ratio in (0.25, 0.25, 0.05, 0.05, 0.01, 0.25):
        pair.codecs = [keeping(make(ratio))]
        pair.encode([heavy(rng, 4000)])
    pair.rollback()
    pair.encode([heavy(rng, 4000)])


def test_the_controller_of_sidco_goes_on_for_many_steps(rng: np.random.Generator) -> None:
    # A gap where the target is: fits miss until the controller rests, and after that.
    def gap(n: int) -> np.ndarray:
        x = rng.standard_normal(n).astype(np.float32) * 1e-3
        x[rng.choice(n, n // 25, replace=False)] = rng.choice([-1, 1], n // 25)
        return x

    parts = [sparsify.SID(0.02), sparsify.SID(0.02, band=None)]
    codecs = [compose(sparsify=part, memory=memory.NoMemory()) for part in parts]
    pair = Pair(codecs, [300] * len(codecs))
    for step in range(110):
        pair.encode([gap(300) if step % 30 else heavy(rng, 300) for _ in codecs])


def refused(pair: Pair, gradients: list[np.ndarray], at: int = 0) -> None:
    """Encode by the kernels, which find what the core says of one tensor; nothing changes."""
    _, rows = pair.start(gradients)
    expected = ["ok"] * at + ["non_finite"] + ["skipped"] * (len(rows) - at - 1)
    assert [structs.STATUS[row[0]] for row in rows] == expected
    for i, codec in enumerate(pair.codecs[:at]):
        codec.encode(gradients[i], pair.here[i])
    with pytest.raises(gradwire.NonFiniteError) as error:
        pair.codecs[at].encode(gradients[at], pair.here[at])
    assert (*rows[at, 8:],) == (error.value.count, error.value.first)
    pair.compare()
    with pytest.raises(ValueError, match="no encode to roll back"):
        pair.there[at].rollback()


@pytest.mark.parametrize(
    ("part", "kept"),
    [
        *((part, memory.Residual()) for part in SELECTING),
        *(
            (sparsify.All(), kept)
            for kept in (
                memory.NoMemory(),
                memory.Residual(decay=0.9, low_memory=True),
                memory.LowPass(),
                memory.LowPass(low_memory=True),
                memory.MomentumCorrection(masking=False, clip=1.0),
                memory.AdamCorrection(),
            )
        ),
    ],
    ids=repr,
)
def test_what_is_not_finite_is_counted_and_found_and_nothing_changes(
    rng: np.random.Generator, part: sparsify.Sparsifier, kept: memory.Memory
) -> None:
    pair = Pair([compose(sparsify=part, quantize=quantize.Float8(), memory=kept)] * 3, [5000] * 3)
    pair.encode([heavy(rng, 5000) for _ in range(3)])
    gradients = [heavy(rng, 5000) for _ in range(3)]
    gradients[1][[17, 4700, 4999]] = [np.nan, np.inf, -np.inf]
    refused(pair, gradients, 1)
    pair.encode([heavy(rng, 5000) for _ in range(3)])


def test_all_blocks_of_a_tensor_look_for_what_is_not_finite(rng: np.random.Generator) -> None:
    numel = 2 * CHUNK + 900
    gradient = heavy(rng, numel)
    gradient[[CHUNK + 3, CHUNK + 9, numel - 1]] = np.nan
    refused(Pair([keeping(sparsify.TopK(ratio=0.01))], [numel]), [gradient])


def test_a_gradient_that_a_momentum_makes_infinite_is_an_error(rng: np.random.Generator) -> None:
    kept = memory.MomentumCorrection(masking=False)
    pair = Pair([compose(sparsify=sparsify.TopK(ratio=0.1), memory=kept)], [500])
    gradient = heavy(rng, 500)
    gradient[[3, 9]] = 2e38
    pair.encode([gradient])
    refused(pair, [gradient])


def test_a_gradient_without_a_norm_is_not_clipped_but_refused(rng: np.random.Generator) -> None:
    kept = memory.MomentumCorrection(clip=0.5)
    pair = Pair([compose(sparsify=sparsify.TopK(ratio=0.1), memory=kept)], [500])
    pair.encode([heavy(rng, 500)])
    gradient = heavy(rng, 500)
    gradient[[3, 9]] = np.inf
    refused(pair, [gradient])


def test_drawn_entries_that_are_not_finite_are_all_that_matters_without_a_memory(
    rng: np.random.Generator,
) -> None:
    codec = compose(sparsify=sparsify.RandomK(ratio=0.1, seed=4), memory=memory.NoMemory())
    pair = Pair([codec], [1000])
    gradient = heavy(rng, 1000)
    sent = np.flatnonzero(
        gradwire.decode(codec.encode(gradient, codec.init_state(1000, name="w0")))
    )
    gradient[np.setdiff1d(np.arange(1000), sent)] = np.nan
    pair.encode([gradient])
    gradient[:] = np.nan
    refused(pair, [gradient])


@pytest.mark.parametrize("part", [sparsify.All(), sparsify.TopK(ratio=0.1)], ids=repr)
def test_a_limit_that_no_frame_keeps_is_told(
    rng: np.random.Generator, part: sparsify.Sparsifier
) -> None:
    pair = Pair([keeping(part)], [100])
    gradients = [heavy(rng, 100)]
    _, (row,) = pair.start(gradients, limits=[HEADER - 1])
    assert structs.STATUS[row[0]] == "limit"
    with pytest.raises(ValueError, match="47 bytes"):
        pair.codecs[0].encode(gradients[0], pair.here[0], max_nbytes=HEADER - 1)
    pair.compare()
