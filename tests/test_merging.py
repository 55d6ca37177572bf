"""What all ranks have sent to one owner is merged: sums, a second selection, what is left."""

import dataclasses
from typing import Any

import numpy as np
import pytest

import gradwire
from gradwire import _native
from gradwire.memory import LowPass, MomentumCorrection, Residual
from gradwire.quantize import BFloat16, Exponent, Float16
from gradwire.sparsify import (
    TopK,
)

NUMEL, RANKS = 3000, 3
CODEC = gradwire.topk(ratio=0.1)
BOUNDS, OWNERS = [0, 900, 2100, NUMEL], [1, 2, 0]


def sent(codec: gradwire.Codec, scale: int = 1) -> tuple[list[Any], list[Any]]:
    """Return the states of all ranks, and what each of them has for each owner."""
    states, messages = [], []
    for rank in range(RANKS):
        x = np.random.default_rng([0, rank]).integers(-50, 51, NUMEL).astype(np.float32) * scale
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
        Residual(low_memory=True),
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
        whole = memory != Residual(low_memory=True)  # is added to instead
        total += before[at] if whole else 0
        out = gradwire.decode(frames)
        assert merged.reshape(-1, 3)[0, :2].tolist() == [
            frames.size,
            -(-6 * sum(part.count for part in parts) // (5 * RANKS)),
        ]
        assert (out[out != 0] == total[out != 0]).all()
        left = np.where(out != 0, 0, total)
        assert np.abs(left).max() <= np.abs(out[out != 0]).min()
        after = before.copy()
        after[at] = left + (0 if whole else before[at])
        np.testing.assert_array_equal(states[owner].residual, after)


NEAREST = [
    gradwire.onebit(column=100),
    gradwire.onebit(column=700),
    gradwire.signsgd(),
    gradwire.float8(memory=Residual()),
    gradwire.dense(quantize=Float16(), memory=Residual()),
    gradwire.dense(quantize=BFloat16(), memory=Residual()),
]
DRAWN = [
    gradwire.qsgd(block=128, memory=Residual()),
    gradwire.qsgd(block=64, norm="max", memory=Residual()),
    gradwire.natural(memory=Residual()),
]


def parts_of(message: Any) -> list[Any]:
    """The frames that a message has, decoded."""
    rest, parts = bytes(message), []
    while rest:
        size = 48 + int.from_bytes(rest[32:40], "little") + int.from_bytes(rest[40:48], "little")
        parts.append(gradwire.decode(rest[:size]))
        rest = rest[size:]
    return parts


def levels_of(quantize: Any, total: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the magnitudes between which a random quantizer chooses for each entry, in float64."""
    values = total.astype(np.float64)
    sizes = np.abs(values)
    if isinstance(quantize, Exponent):
        powers = np.log2(sizes, out=np.full_like(sizes, -np.inf), where=sizes > 0)
        return 2.0 ** np.floor(powers), 2.0 ** np.ceil(powers)
    lower, upper = np.empty_like(sizes), np.empty_like(sizes)
    for start in range(0, sizes.size, quantize.block):
        at = slice(start, start + quantize.block)
        top = np.linalg.norm(sizes[at]) if quantize.norm == "l2" else sizes[at].max()
        unit = top / (2 ** (quantize.bits - 1) - 1)
        lower[at] = np.floor(sizes[at] / unit) * unit
        upper[at] = np.ceil(sizes[at] / unit) * unit
    return lower, upper


@pytest.mark.parametrize("codec", [*NEAREST, *DRAWN], ids=repr)
def test_every_sum_is_quantized_again_and_the_rest_is_the_owners(codec: gradwire.Codec) -> None:
    states, messages = sent(codec, scale=77)
    for owner in range(RANKS):
        before = states[owner].residual
        (frames, merged, error), at = merge(codec, states, messages, owner)
        assert error is None
        numel = at.stop - at.start
        assert merged.tolist()[:2] == [frames.size, numel]
        total = np.zeros(numel, np.float32)
        for each in messages:
            total += np.concatenate(parts_of(each[owner]))
        out = gradwire.decode(frames)
        assert out.any()
        assert (out != total).any()
        if codec in NEAREST:
            alone = codec.encode(total, codec.init_state(numel, name="w"))
            np.testing.assert_array_equal(out, gradwire.decode(alone))
        else:
            lower, upper = levels_of(codec.quantize, total)
            near = [np.isclose(np.abs(out), each, rtol=1e-5) for each in (lower, upper)]
            assert (near[0] | near[1]).all()
            assert all((each & (lower < upper)).any() for each in near)
            assert (np.sign(out) == np.sign(total))[out != 0].all()
        after = before.copy()
        after[at] += total - out
        np.testing.assert_array_equal(states[owner].residual, after)
        states[owner].rollback()
        assert not states[owner].residual.any()


def test_without_a_memory_random_numbers_are_of_step_and_owner_and_of_no_encode() -> None:
    codec = gradwire.qsgd(bits=2)
    found = []
    for _ in range(2):
        states, messages = sent(codec)
        for each in states:
            assert each.step == 1
        found.append([bytes(merge(codec, states, messages, each)[0][0]) for each in range(RANKS)])
    assert found[0] == found[1]
    states, first = sent(codec)
    for each in states:
        codec.encode(np.ones(NUMEL, np.float32), each)
    later = bytes(merge(codec, states, first, 1)[0][0])
    assert later != found[0][1]  # another step
    states[1] = codec.init_state(NUMEL, name="w", stream=7)
    codec.encode(np.ones(NUMEL, np.float32), states[1])
    assert bytes(merge(codec, states, first, 1)[0][0]) != found[0][1]  # another rank
    plain = codec.init_state(NUMEL, name="w", stream=1)
    total = np.zeros(NUMEL, np.float32)
    at = slice(*BOUNDS[OWNERS.index(1) :][:2])
    total[at] = sum(np.concatenate(parts_of(each[1])) for each in first)
    own = gradwire.decode(codec.encode(total, plain))[at]
    assert (own != gradwire.decode(np.frombuffer(found[0][1], np.uint8))).any()


def test_cuts_are_best_where_groups_begin() -> None:
    steps = [
        (gradwire.onebit(column=30), 30),
        (gradwire.qsgd(block=64), 64),
        (gradwire.float8(block=256), 256),
        (gradwire.natural(), 2048),
        (gradwire.signsgd(), 1),
        (gradwire.adaptive(column=30), 30),
        (dataclasses.replace(CODEC, quantize=gradwire.quantize.Uniform(4, block=64)), 1),
    ]
    for codec, step in steps:
        assert codec._codec.cut_step(1000) == step, codec


def test_undoing_the_encode_undoes_the_merge() -> None:
    states, messages = sent(CODEC)
    merge(CODEC, states, messages, 1)
    assert states[1].residual.any()
    states[1].rollback()
    assert not states[1].residual.any()
    _, _, error = merge(CODEC, states, messages, 1)[0]
    assert "after an encode that can be undone" in str(error)


def test_what_is_lifted_is_not_selected_and_not_lost() -> None:
    state = CODEC.init_state(NUMEL)
    x = np.random.default_rng(3).integers(-50, 51, NUMEL).astype(np.float32)
    CODEC.encode(x, state)

    def residual() -> Any:
        return state.residual

    waits = np.full(500, 1000, np.float32)
    state.load_state_dict(
        {**state.state_dict(), "residual": np.concatenate((waits, residual()[500:]))}
    )
    whole = residual()
    lifted = state._lift(0, 500)
    np.testing.assert_array_equal(lifted, waits)
    sent = gradwire.decode(CODEC.encode(x, state))
    state._lower(0, lifted, state.step - 1)
    assert np.abs(sent).max() <= 100
    np.testing.assert_array_equal(sent + residual(), x + whole)
    state.rollback()
    np.testing.assert_array_equal(residual(), whole)
    lifted = state._lift(100, 200)
    assert not residual()[100:200].any()
    with pytest.raises(gradwire.NonFiniteError):
        CODEC.encode(np.full(NUMEL, np.nan, np.float32), state)
    state._lower(100, lifted, state.step)
    np.testing.assert_array_equal(residual(), whole)
    with pytest.raises(ValueError, match="entries 2999 to 3001"):
        state._lift(2999, 3001)


def test_a_quantizer_leaves_its_error_with_the_owner() -> None:
    codec = dataclasses.replace(CODEC, quantize=gradwire.quantize.Uniform(4, block=128))
    states, messages = sent(codec)
    before = states[2].residual
    (frames, _, _), at = merge(codec, states, messages, 2)
    total = before[at].copy()
    for each in messages:  # one part, or two where a block of values began before
        total += np.concatenate(parts_of(each[2]))
    np.testing.assert_allclose(gradwire.decode(frames) + states[2].residual[at], total, atol=1e-4)


@pytest.mark.parametrize(
    "codec", [CODEC, *NEAREST[:2], gradwire.qsgd(bits=2), gradwire.float8()], ids=repr
)
def test_hostile_bytes_are_an_error_and_nothing_is_kept(codec: gradwire.Codec) -> None:
    states, messages = sent(codec)
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
        _, _, error = merge(codec, states, given, 1)[0]
        assert isinstance(error, gradwire.GradwireError), (index, error)
        if index % 3 < 2:
            np.testing.assert_array_equal(states[1].residual, before)
        else:  # found after the merge: whoever gets the error undoes the step
            states[1].rollback()
            states, messages = sent(codec)
