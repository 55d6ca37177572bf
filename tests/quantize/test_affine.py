"""The affine grid as a quantizer of codecs."""

import numpy as np
import pytest

import gradwire
from gradwire.memory import NoMemory, Residual
from gradwire.quantize import Affine
from gradwire.sparsify import All, TopK

FITS = ("range", "zero", "sawb", "squares")


def dense(quantize: Affine) -> gradwire.Codec:
    return gradwire.Codec(sparsify=All(), quantize=quantize, memory=NoMemory())


def weights(*shape: int) -> np.ndarray:
    return np.random.default_rng(29).normal(scale=0.05, size=shape).astype(np.float32)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"bits": 0}, ValueError, "bits"),
        ({"bits": 9}, ValueError, "bits"),
        ({"bits": 4.5}, TypeError, "bits"),
        ({"bits": True}, TypeError, "bits"),
        ({"block": 0}, ValueError, "block"),
        ({"block": 2**32}, ValueError, "block"),
        ({"block": 64.0}, TypeError, "block"),
        ({"fit": "best"}, ValueError, "squares"),
        ({"fit": "zero", "bits": 1}, ValueError, "at least 2 bits"),
        ({"rounding": "up"}, ValueError, "stochastic"),
        ({"rounding": "stochastic"}, ValueError, 'fit="range"'),
        ({"rounding": "stochastic", "fit": "sawb"}, ValueError, 'fit="range"'),
        ({"seed": -1}, ValueError, "seed"),
    ],
)
def test_options_that_mean_nothing_are_refused(options, error, words) -> None:
    with pytest.raises(error, match=words):
        Affine(**options)


@pytest.mark.parametrize("fit", FITS)
@pytest.mark.parametrize("block", [64, 4096, 4097, 70_000, 200_000, None])
def test_blocks_may_be_longer_than_any_cache(fit, block):
    values = weights(150_000)
    frame = dense(Affine(4, block, fit=fit)).encode(values)
    # As if the block were a tensor of its own, but for the power of two.
    length = block or values.size
    parts = [
        gradwire.decode(dense(Affine(4, None, fit=fit)).encode(part))
        for part in np.split(values, range(length, values.size, length))
    ]
    np.testing.assert_allclose(gradwire.decode(frame), np.concatenate(parts), atol=2e-5)
    words = -(-values.size // length)
    assert frame.header()["value_nbytes"] == 8 + 4 * words + values.size // 2


@pytest.mark.parametrize("block", [64, None])
def test_frames_do_not_depend_on_threads(block: int | None) -> None:
    values, threads = weights(1_000_000), gradwire.get_num_threads()
    try:
        frames = []
        for count in (1, 2, 5):
            gradwire.set_num_threads(count)
            frames.append(bytes(dense(Affine(3, block)).encode(values)))
    finally:
        gradwire.set_num_threads(threads)
    assert len(set(frames)) == 1


def test_the_shrunk_range_is_never_worse_and_mostly_better() -> None:
    values = weights(64 * 1000)
    for bits in (1, 2, 3, 4):
        errors = {}
        for fit in ("range", "squares"):
            codec = dense(Affine(bits, 64, fit=fit))
            left = gradwire.decode(codec.encode(values)) - values
            errors[fit] = np.square(left).reshape(-1, 64).sum(axis=1)
        assert np.all(errors["squares"] <= errors["range"] * 1.0001 + 1e-12)
        assert errors["squares"].sum() < 0.995 * errors["range"].sum()


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_pruned_weights_stay_pruned_with_a_grid_that_has_zero(bits: int) -> None:
    values = weights(6400)
    values[::2] = 0
    decoded = gradwire.decode(dense(Affine(bits, 64, fit="zero")).encode(values))
    assert not decoded[::2].any()
    assert decoded[1::2].any()


@pytest.mark.parametrize("fit", FITS)
def test_a_memory_is_refused_where_errors_can_outgrow_the_values(fit):
    zeros = np.zeros(512, np.float32)
    zeros[0] = 1.0
    for bits, block in ((2, 16), (2, 15), (4, 512), (4, 64)):
        quantize = Affine(bits, block, fit=fit)
        left = gradwire.decode(dense(quantize).encode(zeros)) - zeros
        shrinks = float(np.square(left).sum()) < 1.0
        if quantize.contracts:
            assert shrinks
            gradwire.Codec(sparsify=All(), quantize=quantize, memory=Residual())
        else:
            with pytest.raises(ValueError, match='fit="zero"'):
                gradwire.Codec(sparsify=All(), quantize=quantize, memory=Residual())


def test_selected_gradients_keep_what_their_codes_do_not_say():
    codec = gradwire.topk(ratio=0.1, quantize=Affine(4, 64))
    gradient, total = weights(5000), np.zeros(5000, np.float32)
    state = codec.init_state(5000)
    for _ in range(5):
        total += gradwire.decode(codec.encode(gradient, state))
    np.testing.assert_allclose(total + state.residual, 5 * gradient, atol=1e-5)
    assert isinstance(codec.sparsify, TopK)


def test_random_rounding_averages_to_the_values_and_repeats_itself() -> None:
    values = weights(640)
    codec = dense(Affine(2, 64, fit="range", rounding="stochastic", seed=7))
    state, again = codec.init_state(640), codec.init_state(640)
    frames = [bytes(codec.encode(values, state)) for _ in range(2000)]
    assert bytes(codec.encode(values, again)) == frames[0]
    mean = np.mean([gradwire.decode(frame) for frame in frames], axis=0)
    assert np.abs(mean - values).max() < 5 * 0.1 / np.sqrt(2000)
