"""Selections by an estimated threshold, for either sign and by bins, against numpy."""

from statistics import NormalDist

import numpy as np
import pytest

import gradwire
from gradwire.memory import NoMemory
from gradwire.sparsify import BinMax, Gaussian, SampledTopK, Trimmed, TwoSided
from tests.support import largest

NORMAL = np.random.default_rng(1).standard_normal(200_000).astype(np.float32)
HEAVY = np.random.default_rng(2).standard_t(3, 200_000).astype(np.float32)


def selected(sparsify, x):
    """The positions that go of a tensor nothing is known of."""
    codec = gradwire.Codec(sparsify=sparsify, memory=NoMemory())
    return codec.encode(x, codec.init_state(x.size, name="x")).indices()


@pytest.mark.parametrize("x", [NORMAL, HEAVY], ids=["normal", "heavy"])
@pytest.mark.parametrize("ratio", [0.001, 0.01, 0.3])
def test_sampled_top_k_sends_k_at_most_and_the_largest(x, ratio):
    k = int(np.ceil(ratio * x.size))
    positions = selected(SampledTopK(ratio), x)
    assert 0.8 * k <= positions.size <= k
    assert np.array_equal(positions, largest(x, positions.size))


@pytest.mark.parametrize("ratio", [0.001, 0.01, 0.1])
def test_a_normal_law_fits_normal_values(ratio):
    count = selected(Gaussian(ratio), NORMAL).size
    # Chance alone moves the smallest count by 7 % of its square root's share.
    assert abs(count / (ratio * NORMAL.size) - 1) < 0.1 + 2 / np.sqrt(ratio * NORMAL.size)


def gaussian_k(x, k):
    """The positions that the loop of Gaussian-k's authors sends: what its third turn counted."""
    magnitudes, selected = np.abs(x), np.empty(0, np.int64)
    quantile = NormalDist().inv_cdf(1 - k / x.size / 2)
    values = x.astype(np.float64)
    threshold = np.float32(values.mean() + values.std(ddof=1) * quantile)
    for _ in range(3):
        selected = np.flatnonzero(magnitudes > threshold)
        if selected.size < 2 * k / 3:
            threshold *= np.float32(0.5)
        elif selected.size > 4 * k / 3:
            threshold *= np.float32(1.5)
        else:
            break
    return selected


def test_gaussian_k_corrects_twice_as_its_authors_do():
    """With feedback, a third correction would send ever less, in place of 3.6 k on average."""
    n, k = 200_000, 2000
    codec = gradwire.gaussiank(k / n)
    state = codec.init_state(n)
    rng = np.random.default_rng(3)
    sent = []
    for step in range(60):
        x = rng.laplace(size=n).astype(np.float32)
        total = x + state.residual
        indices = codec.encode(x, state).indices()
        assert np.array_equal(indices, gaussian_k(total, k)), step
        sent.append(indices.size / k)
    assert 3 < np.mean(sent[20:]) < 4.2


@pytest.mark.parametrize("x", [NORMAL, HEAVY], ids=["normal", "heavy"])
def test_redsync_trims_to_k_and_searches_for_k_to_2k(x):
    assert np.array_equal(selected(Trimmed(0.01), x), largest(x, 2000))
    positions = selected(Trimmed(0.01, method="search"), x)
    assert 2000 <= positions.size <= 4000
    assert np.array_equal(positions, largest(x, positions.size))


@pytest.mark.parametrize("ratio", [0.1, 0.01])
def test_redsync_mostly_ends_in_the_exact_selection_on_heavy_tails(ratio):
    codec, rng, exact = gradwire.redsync(ratio), np.random.default_rng(4), 0
    state = codec.init_state(HEAVY.size)
    for _ in range(20):
        x = rng.standard_t(3, HEAVY.size).astype(np.float32)
        exact += codec.encode(x, state).indices().size == int(ratio * HEAVY.size)
    assert exact >= 18


def test_two_sided_has_a_threshold_for_each_sign():
    x = NORMAL + np.float32(0.3)
    positions = selected(TwoSided(32), x)
    chosen = x[positions]
    positive, negative = chosen[chosen > 0].min(), chosen[chosen < 0].max()
    assert np.array_equal(positions, np.flatnonzero((x >= positive) | (x <= negative)))
    assert positive != -negative
    assert x.size / 32 / 2 < positions.size <= 4 * x.size // 32


def test_bins_send_what_is_or_could_be_their_largest():
    codec = gradwire.adacomp(bin=50)
    state = codec.init_state(NORMAL.size)
    for seed in range(3):
        x = np.random.default_rng(seed).standard_normal(NORMAL.size).astype(np.float32)
        total = x + state.residual
        frame = codec.encode(x, state)
        most = np.abs(total).reshape(-1, 50).max(axis=1)
        ahead = np.abs(total + x).reshape(-1, 50) >= most[:, None]
        positions = np.flatnonzero(ahead)
        assert np.array_equal(frame.indices(), positions)
        scale = np.float32(most.astype(np.float64).mean())
        assert np.array_equal(frame.values(), np.sign(total[positions]) * scale)


def test_bins_of_zeros_send_nothing():
    x = np.zeros(1000, np.float32)
    x[[60, 999]] = -1, 2
    assert selected(BinMax(50), x).tolist() == [60, 999]
    assert selected(BinMax(50), np.zeros(1000, np.float32)).size == 0


def test_adaptive_takes_a_sixtieth_of_tall_matrices():
    x = np.random.default_rng(5).standard_t(4, (8, 4096)).astype(np.float32)
    codec = gradwire.adaptive(32).for_shape(x.shape)
    state = codec.init_state(x.size)
    for _ in range(3):
        total = (x.ravel() + state.residual).reshape(x.shape)
        frame = codec.encode(x, state)
        assert frame.nbytes * 60 <= x.nbytes
        sent = gradwire.decode(frame).reshape(x.shape)
        for row, whole in zip(sent, total, strict=True):
            for members in (row > 0, row < 0):
                if members.any():
                    mean = whole[members].astype(np.float64).mean()
                    np.testing.assert_allclose(row[members], mean, rtol=1e-6)


def test_adaptive_sends_everything_by_and_by():
    x = np.random.default_rng(6).standard_normal(20_000).astype(np.float32)
    codec = gradwire.adaptive(32)
    state = codec.init_state(x.size)
    sent = np.zeros(x.size)
    for step in range(30):
        sent += gradwire.decode(codec.encode(x if step == 0 else np.zeros_like(x), state))
    np.testing.assert_allclose(sent + state.residual, x, atol=1e-5)
    assert np.abs(state.residual).max() < np.abs(x).max() / 2


def test_strom_sends_plus_or_minus_the_threshold():
    codec = gradwire.strom(1.5)
    state = codec.init_state(NORMAL.size)
    sent = gradwire.decode(codec.encode(NORMAL, state))
    expected = np.where(np.abs(NORMAL) > 1.5, np.copysign(np.float32(1.5), NORMAL), 0)
    assert np.array_equal(sent, expected)
    assert np.array_equal(state.residual, NORMAL - sent)
    with pytest.raises(ValueError, match="threshold must be greater than 0"):
        gradwire.strom(0)


@pytest.mark.parametrize("sparsify", [SampledTopK(0.1), TwoSided(32)], ids=["sampled", "two-sided"])
def test_what_draws_a_sample_needs_a_state_that_counts_the_steps(sparsify):
    codec = gradwire.Codec(sparsify=sparsify, memory=NoMemory())
    with pytest.raises(ValueError, match="state is missing"):
        codec.encode(NORMAL)


def test_exact_thresholds_need_no_state():
    codec = gradwire.Codec(sparsify=TwoSided(32, sample=None), memory=NoMemory())
    assert codec.encode(NORMAL).count == NORMAL.size // 32
