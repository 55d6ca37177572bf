"""Entries at positions that were selected elsewhere: by a leader, or by a part of the user's."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from gradwire import memory, quantize, sparsify
from tests.csrc.bucket.pair import Pair, heavy
from tests.csrc.bucket.test_encoding import CHUNK, SELECTING, compose, keeping
from tests.csrc.emulated.kernels import Kernels
from tests.csrc.parts import MEMORIES

PARTS = [part for part in SELECTING if part.kind != "all"]


def drawn(rng: np.random.Generator, numel: int, share: float) -> NDArray[np.uint32]:
    """Ascending positions, each with this probability."""
    return np.flatnonzero(rng.random(numel) < share).astype(np.uint32)


@pytest.mark.parametrize("part", PARTS, ids=repr)
def test_given_positions_are_encoded_as_the_core_does(
    kernels: Kernels, rng: np.random.Generator, part: sparsify.Sparsifier
) -> None:
    numels = [0, 1, 900, 2100]
    pair = Pair(kernels, [keeping(part)] * len(numels), numels)
    for share in (0.1, 0.0, 1.0):
        gradients = [heavy(rng, n) for n in numels]
        pair.encode(gradients)
        pair.encode_at(gradients, [drawn(rng, n, share) for n in numels])
        pair.rollback()
        pair.encode(gradients)


@pytest.mark.parametrize("kept", MEMORIES, ids=repr)
def test_every_memory_takes_given_positions(
    kernels: Kernels, rng: np.random.Generator, kept: memory.Memory
) -> None:
    codec = compose(sparsify=sparsify.ChunkTopK(20), quantize=quantize.BFloat16(), memory=kept)
    pair = Pair(kernels, [codec] * 2, [700, CHUNK + 5000])
    for _ in range(2):
        supports = [drawn(rng, n, 0.05) for n in pair.numels]
        pair.encode_at([heavy(rng, n) for n in pair.numels], supports)


@pytest.mark.parametrize("part", [sparsify.TopK(ratio=0.1), sparsify.RandomK(ratio=0.1)], ids=repr)
def test_given_positions_are_trimmed_where_they_may_be(
    kernels: Kernels, rng: np.random.Generator, part: sparsify.Sparsifier
) -> None:
    pair = Pair(kernels, [keeping(part)], [2000])
    for share in (0.8, 0.3, 0.0):
        gradients, supports = [heavy(rng, 2000)], [drawn(rng, 2000, 0.2)]
        (frame,) = pair.encode_at(gradients, supports)
        pair.encode_at(gradients, supports, limits=[48 + int(share * (len(frame) - 48))])
    (outcome,) = pair.device.encode(gradients, supports=supports, limits=[100])
    assert outcome.status == "limit"
    assert outcome.nbytes > 100
    pair.compare()


@pytest.mark.parametrize("positions", [[3, 3], [4, 3], [7, 100]])
def test_positions_that_do_not_ascend_or_are_beyond_the_tensor_are_refused(
    kernels: Kernels, rng: np.random.Generator, positions: list[int]
) -> None:
    pair = Pair(kernels, [keeping(sparsify.TopK(ratio=0.1))], [100])
    support = np.array(positions, np.uint32)
    (outcome,) = pair.device.encode([heavy(rng, 100)], supports=[support])
    assert outcome.status == "positions"
    pair.compare()
