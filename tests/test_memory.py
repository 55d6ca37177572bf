"""Memories that keep something else than what was not sent."""

import copy
import json

import numpy as np
import pytest

import gradwire
from gradwire.memory import AdamCorrection, Estimate, LowPass, MomentumCorrection, Residual
from gradwire.sparsify import All, TopK
from tests.support import same_state


class TestBFloat16:
    """A residual of half the size, rounded by chance."""

    def test_seeds_names_and_streams_round_differently_and_frames_are_no_less_the_same(
        self, gradient
    ):
        seen = set()
        for seed, name, stream in ((0, "a", 0), (1, "a", 0), (0, "b", 0), (0, "a", 1)):
            codec = gradwire.topk(0.05, memory=Residual(low_memory=True, seed=seed))
            pair = [codec.init_state(gradient.size, name=name, stream=stream) for _ in range(2)]
            frames = [codec.encode(gradient, state) for state in pair]
            assert frames[0] == frames[1]
            assert same_state(pair[0].state_dict(), pair[1].state_dict())
            seen.add(pair[0].residual.tobytes())
        assert len(seen) == 4

    def test_a_state_dict_has_its_bits_and_goes_to_other_types(self, gradient):
        narrow = gradwire.topk(0.05, memory=Residual(low_memory=True))
        wide = gradwire.topk(0.05)
        state, other = narrow.init_state(gradient.size), wide.init_state(gradient.size)
        narrow.encode(gradient, state)
        saved = state.state_dict()
        assert saved["residual"].dtype == np.uint16
        assert state.nbytes == 4 * gradient.size
        other.load_state_dict(saved)
        assert other.codec == wide
        assert other.state_dict()["residual"].dtype == np.float32
        assert np.array_equal(other.residual, state.residual)
        wide.encode(gradient, other)
        state.load_state_dict(other.state_dict())
        assert state.codec == narrow
        # To the nearest: half a unit in the last place.
        error = np.abs(state.residual - other.residual)
        assert np.all(error <= np.abs(other.residual) * 2.0**-8)
        assert np.mean(error == 0.0) < 0.9

    def test_a_second_moment_has_its_bits_and_goes_to_other_types(self, gradient):
        kept = AdamCorrection(low_memory=True), AdamCorrection()
        narrow, wide = (gradwire.Codec(sparsify=TopK(ratio=0.05), memory=each) for each in kept)
        state, other = narrow.init_state(gradient.size), wide.init_state(gradient.size)
        for x in (gradient, -gradient):
            narrow.encode(x, state)
        saved = state.state_dict()
        assert saved["residual"].dtype == saved["second_moment"].dtype == np.uint16
        assert state.nbytes == 8 * gradient.size
        bits = saved["second_moment"].astype(np.uint32) << 16
        assert np.array_equal(bits.view(np.float32), state.second_moment)
        other.load_state_dict(saved)
        assert np.array_equal(other.second_moment, state.second_moment)
        again = narrow.init_state(gradient.size)
        again.load_state_dict(saved)
        assert narrow.encode(gradient, again) == narrow.encode(gradient, state)
        assert same_state(again.state_dict(), state.state_dict())
        wide.encode(gradient, other)
        state.load_state_dict(other.state_dict())
        error = np.abs(state.second_moment - other.second_moment)
        assert np.all(error <= np.abs(other.second_moment) * 2.0**-8)

    def test_a_residual_of_another_type_is_refused_by_an_encode(self, gradient):
        state = gradwire.topk(0.05).init_state(gradient.size)
        with pytest.raises(ValueError, match="belongs to another codec"):
            gradwire.topk(0.05, memory=Residual(low_memory=True)).encode(gradient, state)


class TestMomentumCorrection:
    def test_masking_and_a_dense_codec_are_refused_with_the_reason(self):
        with pytest.raises(ValueError, match="masking sets the momentum to zero"):
            gradwire.Codec(sparsify=All(), memory=MomentumCorrection())


class TestAdamCorrection:
    def test_the_learning_rate_is_the_state_s(self, gradient):
        codec = gradwire.adam(0.01)
        state = codec.init_state(gradient.size)
        assert state.learning_rate == 1.0
        state.learning_rate = 0.1
        codec.encode(gradient, state)
        state.learning_rate = 0.2
        state.rollback()
        assert state.learning_rate == 0.2
        assert copy.copy(state).learning_rate == 0.2
        other = codec.init_state(gradient.size)
        other.load_state_dict(json_of(state.state_dict()))
        assert other.learning_rate == 0.2
        for bad in (-1e-3, float("nan"), float("inf"), 1e39):
            with pytest.raises(ValueError, match="learning_rate must be finite"):
                state.learning_rate = bad
        with pytest.raises(TypeError, match="learning_rate"):
            state.learning_rate = "fast"
        assert state.learning_rate == 0.2
        state.reset()
        assert state.learning_rate == 1.0

    def test_other_states_have_no_learning_rate(self, gradient):
        state = gradwire.topk(0.01).init_state(gradient.size)
        assert state.learning_rate is None
        assert state.second_moment is None
        with pytest.raises(ValueError, match="has no learning rate"):
            state.learning_rate = 0.1

    def test_a_bucket_takes_each_state_s_learning_rate(self, gradient):
        codec, n = gradwire.adam(0.01), gradient.size
        states = [codec.init_state(n) for _ in range(3)]
        for rate, state in zip((0.0, 0.5, 1.0), states, strict=True):
            state.learning_rate = rate
        others = [copy.copy(state) for state in states]
        limit = codec.max_encoded_len(n)
        ends = [end for i in range(3) for end in (i * n, (i + 1) * n)]
        out = np.zeros(3 * limit, np.uint8)
        x = np.tile(gradient, 3)
        outcomes, error = gradwire._native.encode_bucket(
            x, 4.0, [codec._codec] * 3, states, ends, [limit] * 3, [], out
        )
        assert error is None
        at = 0
        for state, other, row in zip(states, others, outcomes.reshape(3, -1), strict=True):
            frame = codec.encode(gradient / np.float32(4.0), other)
            assert bytes(out[at : at + row[0]]) == bytes(frame)
            assert same_state(state.state_dict(), other.state_dict())
            at += row[0]

    def test_says_that_it_sends_updates(self):
        assert AdamCorrection.updates
        assert not any(memory.updates for memory in (Residual, LowPass, MomentumCorrection))


class TestEstimate:
    """What changes of momentum, and the mean of what all ranks know of it."""

    def test_ranks_that_deliver_the_mean_of_frames_have_the_mean_of_their_estimates(self):
        numel, beta = 3000, 0.95
        codec = gradwire.muon(0.1)
        states = [codec.init_state(numel, stream=rank) for rank in range(3)]
        moments, estimates = np.zeros((3, numel)), np.zeros((3, numel))
        for step in range(8):
            given = np.random.default_rng(step).standard_normal((3, numel), np.float32)
            moments = beta * moments + (1 - beta) * given
            changes = beta * moments + (1 - beta) * given - estimates
            sent = [
                gradwire.decode(codec.encode(x, state))
                for x, state in zip(given, states, strict=True)
            ]
            for change, each in zip(changes, sent, strict=True):
                at = np.flatnonzero(each)
                assert np.abs(change[at]).min() > np.sort(np.abs(change))[-302]
                expected = np.sign(change[at]) * np.abs(change[at]).mean()
                np.testing.assert_allclose(each[at], expected, rtol=1e-5)
            estimates += sent
            for state, own in zip(states, estimates, strict=True):
                mean = np.mean(sent, axis=0, dtype=np.float32)
                state.deliver(mean)
                np.testing.assert_array_equal(mean, state.estimate)
                np.testing.assert_allclose(mean, estimates.mean(axis=0), atol=1e-6)
                np.testing.assert_allclose(state.residual, own, atol=1e-6)
        assert states[0].nbytes == 24 * numel

    def test_a_delivery_is_undone_with_its_encode_saved_and_refused(self, gradient):
        codec = gradwire.muon()
        state = codec.init_state(gradient)
        state.deliver(gradwire.decode(codec.encode(gradient, state)))
        saved = state.state_dict()
        assert same_state(copy.copy(state).state_dict(), saved)
        state.deliver(gradwire.decode(codec.encode(gradient, state)))
        state.rollback()
        assert same_state(state.state_dict(), saved)
        with pytest.raises(gradwire.NonFiniteError):
            state.deliver(np.full(gradient.size, np.inf, np.float32))
        with pytest.raises(ValueError, match="no estimate of this length"):
            state.deliver(np.zeros(3, np.float32))
        with pytest.raises(ValueError, match="no estimate"):
            gradwire.topk().init_state(3).deliver(np.zeros(3, np.float32))
        assert same_state(state.state_dict(), saved)
        with pytest.raises(ValueError, match="nothing to flush"):
            codec.flush(state)
        other = gradwire.muon(momentum=0.5).init_state(gradient)
        other.load_state_dict(saved)
        del saved["estimate"]
        with pytest.raises(ValueError, match="no estimate"):
            other.load_state_dict(saved)
        with pytest.raises(ValueError, match=r"larger than the values"):
            gradwire.Codec(sparsify=All(), quantize=gradwire.quantize.Ternary(), memory=Estimate())


def json_of(saved):
    """A state dict through JSON, as others write it."""
    arrays = {name: each for name, each in saved.items() if isinstance(each, np.ndarray)}
    plain = json.loads(json.dumps({k: v for k, v in saved.items() if k not in arrays}))
    return plain | arrays


def test_a_state_dict_of_another_memory_is_refused(gradient):
    codecs = [
        gradwire.topk(0.01, memory=memory)
        for memory in (Residual(), LowPass(), MomentumCorrection(), AdamCorrection())
    ]
    for codec in codecs:
        saved = codec.init_state(gradient.size).state_dict()
        for other in codecs:
            if other != codec:
                with pytest.raises(ValueError, match="state_dict is for"):
                    other.init_state(gradient.size).load_state_dict(saved)
    corrected = codecs[2].init_state(gradient.size)
    for momentum, message in [
        (None, "momentum must be an array"),
        (np.zeros(3, np.float32), "the momentum has 3 elements"),
    ]:
        with pytest.raises(ValueError, match=message):
            corrected.load_state_dict(corrected.state_dict() | {"momentum": momentum})
    with pytest.raises(TypeError, match="momentum must be float32"):
        corrected.load_state_dict(corrected.state_dict() | {"momentum": np.zeros(gradient.size)})


def test_without_a_memory_there_is_nothing_to_flush():
    codec = gradwire.dense()
    with pytest.raises(ValueError, match="no memory"):
        codec.flush(codec.init_state(5))


def test_a_state_of_another_codec_is_not_flushed():
    with pytest.raises(ValueError, match="belongs to another codec"):
        gradwire.topk(0.1).flush(gradwire.sidco(0.1).init_state(5))
    with pytest.raises(TypeError, match="state must be"):
        gradwire.topk(0.1).flush(None)
