"""What leaders save, rank by rank in one process: up to 64 ranks (Chen et al., NeurIPS 2020)."""

import itertools

import numpy as np
import pytest

import gradwire
from gradwire._native import pack_positions
from gradwire.exchange import LeaderIndices
from gradwire.sparsify import TopK

NUMEL, RATIO = 20_000, 0.01
RANKS = [1, 2, 4, 16, 64]


def gradients(ranks, step):
    """What ranks have in common, and what the data of each adds to it."""
    shared = np.random.default_rng([7, step]).standard_t(3, NUMEL)
    own = [np.random.default_rng([8, step, rank]).standard_t(3, NUMEL) for rank in range(ranks)]
    return [(shared + each).astype(np.float32) for each in own]


def step_of_leaders(codec, states, step):
    """One step of the exchange: what every rank sends, and the bytes of it."""
    xs = gradients(len(states), step)
    leader = step % len(states)
    frame = codec.encode(xs[leader], states[leader])
    positions, message = frame.indices(), pack_positions(frame)
    frames = [
        frame if rank == leader else codec.encode_at(x, state, positions)
        for rank, (x, state) in enumerate(zip(xs, states, strict=True))
    ]
    values = 4 * positions.size
    # A broadcast, and a ring all-reduce.
    share = (len(states) - 1) / len(states)
    return frames, positions, share * len(message) + 2 * share * values


def test_the_volume_is_constant_where_the_union_of_plain_top_k_grows():
    codec = gradwire.Codec(sparsify=TopK(ratio=RATIO), exchange=LeaderIndices())
    plain = gradwire.topk(RATIO)
    ours, gathered, union = {}, {}, {}
    for ranks in RANKS:
        states = [codec.init_state(NUMEL) for _ in range(ranks)]
        others = [plain.init_state(NUMEL) for _ in range(ranks)]
        for step in range(3):
            *_, ours[ranks] = step_of_leaders(codec, states, step)
            xs = gradients(ranks, step)
            frames = [plain.encode(x, each) for x, each in zip(xs, others, strict=True)]
            gathered[ranks] = sum(frame.nbytes for frame in frames[1:])
            union[ranks] = np.unique(np.concatenate([frame.indices() for frame in frames])).size
    k = NUMEL * RATIO
    assert max(ours.values()) < 2 * 4 * k + 1.2 * k + 20
    assert ours[64] < 1.06 * ours[16]  # (N - 1) / N goes to 1
    assert union[1] == k
    # Every doubling of the ranks brings entries that no other rank has.
    assert all(union[b] > 1.5 * union[a] for a, b in itertools.pairwise(RANKS))
    assert union[64] > 12 * union[1]
    assert gathered[64] == pytest.approx(63 * gathered[2], rel=0.05)
    assert gathered[64] > 30 * ours[64]
