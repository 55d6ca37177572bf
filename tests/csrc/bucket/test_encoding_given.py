"""Entries at positions that were selected elsewhere: by a leader, or by a part of the user's."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from gradwire import memory, quantize, sparsify
from gradwire.torch.backends.cuda.structs import STATUS as STATUSES
from tests.csrc.bucket.pair import Pair, heavy
from tests.csrc.bucket.test_encoding import CHUNK, SELECTING, compose, keeping
from tests.csrc.parts import MEMORIES

PARTS = [part for part in SELECTING if part.kind != "all"]


def drawn(rng: np.random.Generator, numel: int, share: float) -> NDArray[np.uint32]:
    """Ascending positions, each with this probability."""
    return np.flatnonzero(rng.random(numel) < share).astype(np.uint32)


@pytest.mark.parametrize("part", PARTS, ids=repr)
def test_given_positions_are_encoded_as_the_core_does(
    rng: np.random.Generator, part: sparsify.Sparsifier
) -> None:
    numels = [0, 1, 900, 2100]
    pair = Pair([keeping(part)] * len(numels), numels)
    for share in (0.1, 0.0, 1.0):
        gradients = [heavy(rng, n) for n in numels]
        pair.encode(gradients)
        pair.encode(gradients, positions=[drawn(rng, n, share) for n in numels])
        pair.rollback()
        pair.encode(gradients)


@pytest.mark.parametrize("kept", MEMORIES, ids=repr)
def test_every_memory_takes_given_positions(rng: np.random.Generator, kept: memory.Memory) -> None:
    codec = compose(sparsify=sparsify.ChunkTopK(20), quantize=quantize.BFloat16(), memory=kept)
    pair = Pair([codec] * 2, [700, CHUNK + 5000])
    for _ in range(2):
        supports = [drawn(rng, n, 0.05) for n in pair.numels]
        pair.encode([heavy(rng, n) for n in pair.numels], positions=supports)


@pytest.mark.parametrize("part", [sparsify.TopK(ratio=0.1), sparsify.RandomK(ratio=0.1)], ids=repr)
def test_given_positions_are_trimmed_where_they_may_be(
    rng: np.random.Generator, part: sparsify.Sparsifier
) -> None:
    pair = Pair([keeping(part)], [2000])
    for share in (0.8, 0.3, 0.0):
        gradients, supports = [heavy(rng, 2000)], [drawn(rng, 2000, 0.2)]
        (frame,) = pair.encode(gradients, positions=supports)
        limit = 48 + int(share * (len(frame) - 48))
        pair.encode(gradients, positions=supports, limits=[limit])


@pytest.mark.parametrize("positions", [[3, 3], [4, 3], [7, 100]])
def test_positions_that_do_not_ascend_or_are_beyond_the_tensor_are_refused(
    rng: np.random.Generator, positions: list[int]
) -> None:
    pair = Pair([keeping(sparsify.TopK(ratio=0.1))], [100])
    support = np.array(positions, np.uint32)
    _, (row,) = pair.start([heavy(rng, 100)], positions=[support])
    assert STATUSES[row[0]] == "positions"
    pair.compare()
