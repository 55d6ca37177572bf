"""What all ranks have sent to one owner is merged: sums, a second selection, what is left."""

import dataclasses
from typing import Any

import numpy as np
import pytest

import gradwire
from gradwire import _native
from gradwire.memory import LowPass, MomentumCorrection, Residual
from gradwire.sparsify import TopK

NUMEL, RANKS = 3000, 3
CODEC = gradwire.topk(ratio=0.1)
BOUNDS, OWNERS = [0, 900, 2100, NUMEL], [1, 2, 0]


def sent(codec: gradwire.Codec, seed: int = 0) -> tuple[list[Any], list[Any]]:
    """Return the states of all ranks, and what each of them has for each owner."""
    states, messages = [], []
    for rank in range(RANKS):
        x = np.random.default_rng([seed, rank]).integers(-50, 51, NUMEL).astype(np.float32)
        state = codec.init_state(NUMEL, name="w", stream=rank)
        frame = codec.encode(x, state)
        data = np.frombuffer(bytes(frame), np.uint8)
        messages.append(_native.split_bucket(data, [frame.nbytes], [BOUNDS], [OWNERS], RANKS))
        states.append(state)
    return states, messages


def merge(codec: gradwire.Codec, states: list[Any], messages: list[Any], owner: int) -> Any:
    at = OWNERS.index(owner)
    ends, theirs = BOUNDS[at : at + 2], [each[owner] for each in messages]
    return _native.merge_bucket(
        theirs, [0] * RANKS, [codec._codec], [states[owner]], ends, [False]
    ), slice(*ends)


@pytest.mark.parametrize(
    "memory",
    [
        Residual(),
        Residual(decay=0.5),
        Residual(dtype="bfloat16"),
        LowPass(0.5),
        MomentumCorrection(),
    ],
    ids=repr,
)
def test_what_is_sent_on_and_what_is_kept_are_the_sums(memory: Any) -> None:
    codec = gradwire.Codec(sparsify=TopK(ratio=0.1), memory=memory)
    states, messages = sent(codec)
    for owner in range(RANKS):
        before = states[owner].residual
        (frames, merged, error), at = merge(codec, states, messages, owner)
        assert error is None
        parts = [gradwire.Frame(each[owner]) for each in messages]
        decoded = np.stack([gradwire.decode(part) for part in parts])
        total = decoded.sum(axis=0, dtype=np.float32)
        out = gradwire.decode(frames)
        assert merged.reshape(-1, 3)[0, :2].tolist() == [
            frames.size,
            -(-sum(part.count for part in parts) // RANKS),
        ]
        assert (out[out != 0] == total[out != 0]).all()
        left = np.where(out != 0, 0, total)
        assert np.abs(left).max() <= np.abs(out[out != 0]).min()
        after = before.copy()
        after[at] += left
        np.testing.assert_array_equal(states[owner].residual, after)


def test_undoing_the_encode_undoes_the_merge() -> None:
    states, messages = sent(CODEC)
    merge(CODEC, states, messages, 1)
    assert states[1].residual.any()
    states[1].rollback()
    assert not states[1].residual.any()
    _, _, error = merge(CODEC, states, messages, 1)[0]
    assert "after an encode that can be undone" in str(error)


def test_a_quantizer_leaves_its_error_with_the_owner() -> None:
    codec = dataclasses.replace(CODEC, quantize=gradwire.quantize.Uniform(4))
    states, messages = sent(codec)
    before = states[2].residual
    (frames, _, _), at = merge(codec, states, messages, 2)
    total = np.zeros(at.stop - at.start, np.float32)
    for each in messages:
        rest, first = bytes(each[2]), 0
        while rest:  # one part, or two where a block of values began before
            size = (
                48 + int.from_bytes(rest[32:40], "little") + int.from_bytes(rest[40:48], "little")
            )
            part = gradwire.decode(rest[:size])
            total[first : first + part.size] += part
            rest, first = rest[size:], first + part.size
        assert first == total.size
    np.testing.assert_allclose(
        gradwire.decode(frames) + (states[2].residual - before)[at], total, atol=1e-4
    )


def test_hostile_bytes_are_an_error_and_nothing_is_kept() -> None:
    states, messages = sent(CODEC)
    random = np.random.default_rng(1)
    good = messages[0][1]
    for index in range(300):
        bad = good.copy()
        if index % 3 == 0:
            bad = bad[: random.integers(bad.size)]
        elif index % 3 == 1:
            bad[random.integers(bad.size)] ^= 1 << random.integers(8)
        else:
            bad = np.concatenate((bad, good if index % 2 else good[:5]))
        before = states[1].residual
        given = [[None, bad, None], *messages[1:]]
        _, _, error = merge(CODEC, states, given, 1)[0]
        assert isinstance(error, gradwire.GradwireError), (index, error)
        if index % 3 < 2:
            np.testing.assert_array_equal(states[1].residual, before)
        else:  # found after the merge: whoever gets the error undoes the step
            states[1].rollback()
            states, messages = sent(CODEC)
