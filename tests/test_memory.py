"""Memories that keep something else than what was not sent."""

import copy
import json
import pickle

import numpy as np
import pytest

import gradwire
from gradwire.memory import AdamCorrection, LowPass, MomentumCorrection, Residual
from gradwire.quantize import BFloat16
from gradwire.sparsify import All, TopK
from tests.support import FILTERS, SPARSIFIERS, name_of, same_state

CODECS = [
    gradwire.Codec(sparsify=sparsify, quantize=BFloat16(), memory=memory)
    for sparsify in SPARSIFIERS
    for memory in FILTERS
    if not (isinstance(sparsify, All) and getattr(memory, "masking", False))
]


@pytest.mark.parametrize("codec", CODECS, ids=name_of)
class TestEveryMemory:
    def test_describes_itself(self, codec):
        assert eval(repr(codec), {"gradwire": gradwire}) == codec
        assert gradwire.Codec.from_config(json.loads(json.dumps(codec.get_config()))) == codec
        assert pickle.loads(pickle.dumps(codec)) == codec

    def test_a_saved_state_goes_on_bit_for_bit(self, codec, gradient):
        state = codec.init_state(gradient.size)
        for _ in range(3):
            codec.encode(gradient, state)
        copies = [
            codec.init_state(gradient.size),
            copy.copy(state),
            pickle.loads(pickle.dumps(state)),
        ]
        copies[0].load_state_dict(state.state_dict())
        frame = bytes(codec.encode(gradient * 2, state))
        for other in copies:
            assert bytes(codec.encode(gradient * 2, other)) == frame
            assert same_state(other.state_dict(), state.state_dict())

    def test_rollback_and_errors_restore_all_of_it(self, codec, gradient):
        state = codec.init_state(gradient.size)
        codec.encode(gradient, state)
        before = state.state_dict()
        codec.encode(gradient, state)
        state.rollback()
        assert same_state(state.state_dict(), before)
        before = state.state_dict()
        with pytest.raises(gradwire.NonFiniteError):
            codec.encode(gradient * np.float32(np.inf), state)
        assert same_state(state.state_dict(), before)

    def test_given_positions_give_what_selecting_gives(self, codec, gradient):
        if codec.sparsify == All():
            pytest.skip("takes no positions")
        own, given = codec.init_state(gradient.size), codec.init_state(gradient.size)
        for _ in range(3):
            frame = codec.encode(gradient, own)
            again = codec.encode_at(gradient, given, frame.indices())
            # How positions are coded may differ: those that are drawn need no more than a key.
            assert np.array_equal(again.indices(), frame.indices())
            assert np.array_equal(again.values(), frame.values())
            assert np.array_equal(own.residual, given.residual)
            for moment in ("momentum", "second_moment"):
                if getattr(own, moment) is not None:
                    assert np.array_equal(getattr(own, moment), getattr(given, moment))


class TestBFloat16:
    """A residual of half the size, rounded by chance."""

    def test_decoded_and_kept_add_up_to_a_unit_in_the_last_place(self, gradient):
        for quantize in (BFloat16(), gradwire.quantize.Float32(), gradwire.quantize.SignScale()):
            codec = gradwire.Codec(
                sparsify=TopK(ratio=0.05), quantize=quantize, memory=Residual(low_memory=True)
            )
            state = codec.init_state(gradient.size)
            for _ in range(5):
                total = gradient + state.residual
                left = total - gradwire.decode(codec.encode(gradient, state))
                assert np.all(np.abs(state.residual - left) <= np.abs(left) * 2.0**-7 + 1e-40)
                assert not (state.residual.view(np.uint32) & 0xFFFF).any()

    def test_what_is_sent_in_the_end_is_what_was_given(self):
        # Half a unit in the last place is more from 0.25 on: the nearest would stay there for ever.
        codec = gradwire.Codec(
            sparsify=gradwire.sparsify.Threshold(threshold=1.0), memory=Residual(low_memory=True)
        )
        x, steps = np.full(4096, 1e-3, np.float32), 3000
        state = codec.init_state(x.size)
        sent = np.zeros(x.size)
        for _ in range(steps):
            sent += gradwire.decode(codec.encode(x, state))
        rate = (sent + state.residual).mean() / (steps * np.float64(x[0]))
        # A step has a variance of 3e-6 at most, so that of the mean is 3000 * 3e-6 / 4096.
        assert abs(rate - 1.0) < 4.5 * np.sqrt(steps * 3e-6 / x.size) / (steps * 1e-3)

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

    @pytest.mark.parametrize("memory", [Residual, LowPass, AdamCorrection])
    def test_options_are_checked(self, memory):
        with pytest.raises(TypeError, match="low_memory must be a bool, got"):
            memory(low_memory="half")
        with pytest.raises(ValueError, match="seed must be at least 0"):
            memory(seed=-1)
        with pytest.raises(TypeError, match="seed must be an integer"):
            memory(seed=0.5)


class TestLowPass:
    def test_follows_the_rule_in_every_entry(self, rng):
        codec = gradwire.Codec(sparsify=TopK(k=20), memory=LowPass(0.25))
        state = codec.init_state(500)
        beta = np.float32(0.25)
        for _ in range(5):
            x, before = rng.standard_normal(500).astype(np.float32), state.residual
            at = codec.encode(x, state).indices()
            expected = before + beta * x
            # Not zero where it was sent: what was in the memory fades.
            expected[at] = (1 - beta) * before[at]
            assert np.array_equal(state.residual, expected)

    def test_takes_a_share_greater_than_zero(self):
        for beta in (0, -0.1, 1.5, float("nan")):
            with pytest.raises(ValueError, match="beta"):
                LowPass(beta)


class TestMomentumCorrection:
    @pytest.mark.parametrize("nesterov", [False, True])
    @pytest.mark.parametrize("masking", [False, True])
    def test_follows_the_equations(self, rng, nesterov, masking):
        memory = MomentumCorrection(momentum=0.8, nesterov=nesterov, masking=masking)
        codec = gradwire.Codec(sparsify=TopK(ratio=0.05), memory=memory)
        state = codec.init_state(500)
        u, v = np.zeros(500), np.zeros(500)
        for _ in range(40):
            g = rng.standard_normal(500).astype(np.float32)
            if nesterov:
                u = 0.8 * (u + g)
                v = v + u + g
            else:
                u = 0.8 * u + g
                v = v + u
            frame = codec.encode(g, state)
            at = frame.indices()
            v[at] -= frame.values()
            if masking:
                u[at] = 0
            assert np.allclose(state.momentum, u, atol=1e-5)
            assert np.allclose(state.residual, v, atol=1e-4)

    def test_clips_the_norm_of_the_tensor(self):
        memory = MomentumCorrection(clip=2.5)
        codec = gradwire.Codec(sparsify=TopK(k=1), memory=memory)
        x = np.array([3, -4, 0], np.float32)
        assert codec.preview(x, codec.init_state(3)).tolist() == [1.5, -2, 0]
        assert codec.preview(x / 4, codec.init_state(3)).tolist() == [0.75, -1, 0]

    @pytest.mark.parametrize(
        "options", [{"momentum": 1.0}, {"momentum": -0.1}, {"clip": 0.0}, {"clip": float("inf")}]
    )
    def test_refuses_what_has_no_meaning(self, options):
        with pytest.raises(ValueError, match=next(iter(options))):
            MomentumCorrection(**options)

    def test_masking_and_a_dense_codec_are_refused_with_the_reason(self):
        with pytest.raises(ValueError, match="masking sets the momentum to zero"):
            gradwire.Codec(sparsify=All(), memory=MomentumCorrection())


class TestAdamCorrection:
    def test_follows_the_equations(self, rng):
        memory = AdamCorrection(beta2=0.99, eps=1e-6)
        codec = gradwire.Codec(sparsify=TopK(ratio=0.05), quantize=BFloat16(), memory=memory)
        state = codec.init_state(500)
        v, r = np.zeros(500), np.zeros(500)
        for t in range(1, 41):
            g = rng.standard_normal(500).astype(np.float32)
            state.learning_rate = 1e-2 / t
            v = 0.99 * v + 0.01 * g.astype(np.float64) ** 2
            r = r + 1e-2 / t * g / (np.sqrt(v / (1 - 0.99**t)) + 1e-6)
            r -= gradwire.decode(codec.encode(g, state))
            assert np.allclose(state.second_moment, v, rtol=1e-5, atol=0)
            assert np.allclose(state.residual, r, atol=1e-7)

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

    def test_a_state_dict_is_checked_before_anything_changes(self, gradient):
        codec = gradwire.adam(0.01)
        state = codec.init_state(gradient.size)
        codec.encode(gradient, state)
        saved = state.state_dict()
        second = saved["second_moment"]
        negative, infinite = second.copy(), second.copy()
        negative[5], infinite[5] = -1.0, np.inf
        for bad, error in [
            (negative, ValueError),
            (infinite, gradwire.NonFiniteError),
            (second[1:], ValueError),
            (None, ValueError),
            (second.astype(np.float64), TypeError),
        ]:
            with pytest.raises(error):
                state.load_state_dict(saved | {"second_moment": bad})
        for name, value in [("learning_rate", -1.0), ("second_moment_steps", 0.5)]:
            scalars = saved["scalars"] | {name: value}
            with pytest.raises(ValueError, match=name):
                state.load_state_dict(saved | {"scalars": scalars})
        assert same_state(state.state_dict(), saved)

    @pytest.mark.parametrize(
        "options",
        [{"beta2": 1.0}, {"beta2": -0.1}, {"eps": 0.0}, {"eps": 1e-39}, {"eps": float("inf")}],
    )
    def test_refuses_what_has_no_meaning(self, options):
        with pytest.raises(ValueError, match=next(iter(options))):
            AdamCorrection(**options)

    def test_says_that_it_sends_updates(self):
        assert AdamCorrection.updates
        assert not any(memory.updates for memory in (Residual, LowPass, MomentumCorrection))


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


@pytest.mark.parametrize(
    "memory",
    [
        MomentumCorrection(momentum=0.9),
        MomentumCorrection(momentum=0.9, nesterov=True, masking=False),
        AdamCorrection(beta2=0.9),
        AdamCorrection(beta2=0.9, low_memory=True),
        Residual(decay=0.9),
        Residual(decay=0.9, low_memory=True),
    ],
    ids=name_of,
)
def test_rows_that_are_left_alone_end_at_zero(memory):
    """Subnormal numbers would stay: 0.9 times four of the smallest is four of them again."""
    rows, width = 64, 8
    codec = gradwire.topk(ratio=0.02, memory=memory)
    state = codec.init_state(rows * width)
    rng = np.random.default_rng(4)
    tiny = np.finfo(np.float32).smallest_normal
    for step in range(801):
        x = 1e-3 * rng.standard_normal((rows, width), np.float32)
        if step:
            x[1:] = 0
        codec.encode(x.ravel(), state)
        arrays = [state.residual, state.momentum, state.second_moment]
        for kept in (np.asarray(each, np.float32) for each in arrays if each is not None):
            assert not ((kept != 0) & (np.abs(kept) < tiny)).any(), step
    fading = {"momentum_correction": state.momentum, "adam_correction": state.second_moment}
    left = np.asarray(fading.get(memory.kind, state.residual), np.float32)
    assert left[width:].tobytes() == bytes(4 * (rows - 1) * width)


def test_an_old_checkpoint_with_subnormal_numbers_is_loaded_without_them():
    values = np.array([2.0**-126, -(2.0**-127), 1e-45, 1.0], np.float32)
    codec = gradwire.topk(ratio=0.25, memory=AdamCorrection())
    state = codec.init_state(4)
    saved = state.state_dict() | {"residual": values, "second_moment": np.abs(values)}
    state.load_state_dict(saved)
    assert state.residual.tolist() == [2.0**-126, 0, 0, 1]
    assert state.second_moment.tolist() == [2.0**-126, 0, 0, 1]


@pytest.mark.parametrize("beta2", [0.0, 0.9, 0.95, 0.999])
@pytest.mark.parametrize("quiet", [0, 20, 1000])
@pytest.mark.parametrize("spike", [1e19, 6e20, 1e25, 3e38])
def test_no_spike_makes_a_step_beyond_adams_bound(beta2, quiet, spike):
    """Kingma and Ba, section 2.1; where the square is beyond float32 it was 504 instead of 0.03."""
    codec = gradwire.Codec(sparsify=All(), memory=AdamCorrection(beta2=beta2))
    state = codec.init_state(3)
    state.learning_rate = 1e-3
    for _ in range(quiet):
        codec.encode(np.array([0.1, -0.2, 0.0], np.float32), state)
    for t in range(quiet + 1, quiet + 4):
        x = np.array([spike, -spike, spike], np.float32)
        sent = gradwire.decode(codec.encode(x, state))
        bound = 1e-3 * np.sqrt((1 - beta2**t) / (1 - beta2)) * (1 + 2e-6)
        assert (np.sign(sent) == np.sign(x)).all()
        assert (np.abs(sent) <= bound).all(), (t, sent, bound)
