"""Random-k: the same positions on all ranks."""

import numpy as np
import pytest

import gradwire
from gradwire.memory import NoMemory
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


def test_a_state_is_needed_to_know_the_step():
    codec = gradwire.Codec(sparsify=RandomK(k=3), memory=NoMemory())
    with pytest.raises(ValueError, match="this codec draws random numbers"):
        codec.encode(normal(10))
