"""Natural compression: powers of two, rounded stochastically with the value as their mean."""

import numpy as np
import pytest

import gradwire
from gradwire.quantize import Exponent
from gradwire.sparsify import TopK


def draws_of(x: np.ndarray, number: int) -> np.ndarray:
    codec = gradwire.natural()
    state = codec.init_state(x.size)
    return np.stack([gradwire.decode(codec.encode(x, state)) for _ in range(number)])


def test_values_become_a_neighbouring_power_of_two():
    rng = np.random.default_rng(0)
    x = (rng.standard_normal(5000) * np.exp2(rng.integers(-40, 40, 5000))).astype(np.float32)
    codec = gradwire.natural()
    y = gradwire.decode(codec.encode(x, codec.init_state(x.size)))
    mantissa, exponent = np.frexp(np.abs(y))
    assert (mantissa == 0.5).all()
    _, below = np.frexp(np.abs(x))
    assert np.isin(exponent - below, [0, 1]).all()
    assert (np.sign(y) == np.sign(x)).all()


def test_the_mean_is_the_value_and_the_variance_at_most_an_eighth():
    rng = np.random.default_rng(1)
    x = rng.standard_normal(512).astype(np.float32)
    draws = draws_of(x, 4000).astype(np.float64)
    error, deviation = draws.mean(0) - x, draws.std(0)
    standard_error = deviation / np.sqrt(len(draws))
    assert (np.abs(error) <= 4.5 * standard_error + 1e-12).all()
    assert abs(error.sum() / np.sqrt((standard_error**2).sum())) < 4
    # Theorem 2 of the paper, with room for a sample's variance.
    assert (deviation**2 <= np.square(x, dtype=np.float64) / 8 * 1.05).all()


def test_what_is_below_the_smallest_power_has_its_mean_too():
    # The powers end at 1, so that the smallest is 2^-126.
    part = np.float32(2.0**-126 / 3)
    x = np.full(2048, part)
    x[0] = 1.0
    draws = draws_of(x, 100)[:, 1:]
    assert set(np.unique(draws)) == {np.float32(0), np.float32(2.0**-126)}
    share, n = (draws > 0).mean(), draws.size
    assert abs(share - 1 / 3) < 4 * np.sqrt(2 / 9 / n)


@pytest.mark.parametrize(
    "values",
    [
        [0.0, -0.0],
        [1.0, -1.0, 0.0, 2.0**-126],
        [2.0**-149, -(2.0**-149), 2.0**-140],
        [2.0**127, -(2.0**127), 2.0**1],
        [0.0] * 3000 + [-4.0],
    ],
)
def test_zeros_and_powers_are_exact(values):
    x = np.array(values, np.float32)
    for y in draws_of(x, 20):
        np.testing.assert_array_equal(y, x)
        assert (np.signbit(y) == np.signbit(x)).all()


def test_only_what_is_above_the_largest_power_is_cut_off():
    x = np.array([np.finfo(np.float32).max, -1.5 * 2.0**127, 2.0**126], np.float32)
    for y in draws_of(x, 20):
        np.testing.assert_array_equal(y, np.float32([2.0**127, -(2.0**127), 2.0**126]))


def test_it_takes_eight_bits_an_entry():
    codec = gradwire.natural()
    frame = codec.encode(np.ones(8192, np.float32), codec.init_state(8192))
    assert len(frame) == 48 + 4 + 4 * 4 + 8192


def test_steps_ranks_and_tensors_draw_apart_and_a_rollback_draws_again():
    x = np.random.default_rng(2).standard_normal(1000).astype(np.float32)
    codec = gradwire.natural(seed=3)
    state = codec.init_state(1000, name="a")
    first = bytes(codec.encode(x, state))
    state.rollback()
    assert bytes(codec.encode(x, state)) == first
    assert bytes(codec.encode(x, state)) != first
    others = [
        (gradwire.natural(seed=3), {"name": "a", "stream": 1}),
        (gradwire.natural(seed=3), {"name": "b"}),
        (gradwire.natural(seed=4), {"name": "a"}),
    ]
    for other, options in others:
        assert bytes(other.encode(x, other.init_state(1000, **options))) != first
    assert bytes(codec.encode(x, codec.init_state(1000, name="a"))) == first


def test_it_needs_a_state():
    for codec in (gradwire.natural(), gradwire.topk(k=2, quantize=Exponent())):
        with pytest.raises(ValueError, match="state"):
            codec.encode(np.ones(4, np.float32))


def test_selected_entries_conserve():
    rng = np.random.default_rng(4)
    codec = gradwire.Codec(sparsify=TopK(ratio=0.2), quantize=Exponent())
    state = codec.init_state(500)
    total, sent = np.zeros(500), np.zeros(500)
    for _ in range(20):
        x = rng.standard_normal(500).astype(np.float32)
        total += x
        sent += gradwire.decode(codec.encode(x, state))
        np.testing.assert_allclose(sent + state.residual, total, rtol=0, atol=1e-5)
