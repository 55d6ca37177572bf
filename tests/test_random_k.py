"""Random-k: the same positions on all ranks, and nobody's random state touched."""

import random

import numpy as np
import pytest

import gradwire
from gradwire.memory import NoMemory, Residual
from gradwire.sparsify import RandomK


def normal(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(n, dtype=np.float32)


def positions(codec: gradwire.Codec, n: int = 1000, steps: int = 1, **identity) -> list[list[int]]:
    state = codec.init_state(n, **identity)
    return [codec.encode(normal(n, step), state).indices().tolist() for step in range(steps)]


@pytest.mark.parametrize("block", [False, True])
def test_seed_name_and_step_decide_and_the_rank_does_not(block):
    codec = gradwire.randomk(k=20, block=block, seed=7)
    first = positions(codec, steps=3, name="layer.weight", stream=0)
    assert first == positions(codec, steps=3, name="layer.weight", stream=1)
    others = [
        positions(codec, steps=3, name="weight.layer"),
        positions(gradwire.randomk(k=20, block=block, seed=8), steps=3, name="layer.weight"),
    ]
    drawn = [tuple(step) for steps in [first, *others] for step in steps]
    assert len(set(drawn)) == len(drawn)
    assert all(len(step) == 20 for step in drawn)


def test_a_block_is_one_run_that_wraps():
    codec = gradwire.randomk(k=300, block=True)
    for step in positions(codec, steps=50):
        gaps = np.diff([*step, step[0] + 1000])
        assert sorted(gaps)[:-1] == [1] * 299
        assert sum(gaps) == 1000


def test_positions_cost_nine_bytes():
    frame = gradwire.randomk(0.1).encode(normal(10_000), gradwire.randomk(0.1).init_state(10_000))
    assert frame.nbytes == 48 + 9 + 4 * 1000
    assert frame.header()["coding"] == "seeded"
    assert gradwire.randomk(0.1).max_encoded_len(10_000) == frame.nbytes


def test_nobody_elses_random_numbers_are_touched():
    codec = gradwire.randomk(0.1)
    state = codec.init_state(1000, name="w")
    np.random.seed(1)  # noqa: NPY002 - the global state is what this is about
    random.seed(1)
    before = (str(np.random.get_state()), random.getstate())  # noqa: NPY002
    first = codec.encode(normal(1000), state)
    gradwire.decode(first)
    assert (str(np.random.get_state()), random.getstate()) == before  # noqa: NPY002
    np.random.seed(2)  # noqa: NPY002
    other = codec.init_state(1000, name="w")
    assert codec.encode(normal(1000), other) == first


def test_torch_random_numbers_are_not_touched():
    torch = pytest.importorskip("torch")
    before = torch.get_rng_state().clone()
    positions(gradwire.randomk(0.1), steps=2)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_state_resumes_where_it_was_saved():
    codec = gradwire.randomk(k=5, seed=1)
    straight = positions(codec, steps=4, name="w")
    state = codec.init_state(1000, name="w")
    for step in range(2):
        codec.encode(normal(1000, step), state)
    resumed = codec.init_state(1000, name="w")
    resumed.load_state_dict(state.state_dict())
    later = [codec.encode(normal(1000, step), resumed).indices().tolist() for step in (2, 3)]
    assert later == straight[2:]


def test_everything_comes_through_in_time():
    codec = gradwire.randomk(ratio=0.1)
    state = codec.init_state(500)
    total = np.zeros(500)
    for _ in range(200):
        total += gradwire.decode(codec.encode(np.ones(500, np.float32), state))
    assert np.allclose(total + state.residual, 200)
    assert state.residual.max() < 100


def test_scaled_values_need_that_nothing_is_kept():
    sparsify = RandomK(ratio=0.25, scaled=True)
    codec = gradwire.Codec(sparsify=sparsify, memory=NoMemory())
    sent = gradwire.decode(codec.encode(np.ones(400, np.float32), codec.init_state(400)))
    assert sorted(set(sent)) == [0.0, 4.0]
    assert sent.mean() == 1.0
    with pytest.raises(ValueError, match="scaled random-k cannot have a memory"):
        gradwire.Codec(sparsify=sparsify, memory=Residual())


def test_a_state_is_needed_to_know_the_step():
    codec = gradwire.Codec(sparsify=RandomK(k=3), memory=NoMemory())
    with pytest.raises(ValueError, match="this codec draws random numbers"):
        codec.encode(normal(10))


def test_without_a_memory_only_what_is_drawn_is_looked_at():
    codec = gradwire.Codec(sparsify=RandomK(k=10), memory=NoMemory())
    drawn = positions(codec, 200, name="w")[0]
    x = np.full(200, np.nan, np.float32)
    x[drawn] = 2
    state = codec.init_state(200, name="w")
    assert codec.encode(x, state).values().tolist() == [2] * 10
    state.rollback()
    x[drawn[4]] = np.inf
    with pytest.raises(gradwire.NonFiniteError, match=f"the first at position {drawn[4]}"):
        codec.encode(x, state)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({}, TypeError, "either ratio= or k="),
        ({"k": 1, "ratio": 0.5}, TypeError, "either ratio= or k="),
        ({"k": 0}, ValueError, "k must be at least 1"),
        ({"ratio": 1.5}, ValueError, "ratio must be"),
        ({"k": 1, "seed": -1}, ValueError, "seed must be at least 0"),
        ({"k": 1, "seed": 2**64}, ValueError, "seed must be at most"),
        ({"k": 1, "block": 1}, TypeError, "block must be a bool"),
        ({"k": 1, "scaled": "no"}, TypeError, "scaled must be a bool"),
    ],
)
def test_bad_options_are_named(options, error, message):
    with pytest.raises(error, match=message):
        RandomK(**options)
