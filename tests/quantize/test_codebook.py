"""A few fitted magnitudes, against the quantizer that SparseLoCo's code has."""

import numpy as np
import pytest

import gradwire
from gradwire.quantize import Codebook
from gradwire.sparsify import All, TopK

DRAW = {
    "Gaussian": lambda rng, n: rng.standard_normal(n),
    "Laplace": lambda rng, n: rng.laplace(size=n),
    "t(3)": lambda rng, n: rng.standard_t(3, n),
}


def published(values: np.ndarray, bins: int = 4) -> np.ndarray:
    """Bins of equal width over six standard deviations around the mean, decoded as their means."""
    centred = values - values.mean()
    scale = 6 * values.std(ddof=1) / bins
    codes = np.clip(np.round(centred / scale + bins / 2), 0, bins - 1).astype(int)
    means = [values[codes == code].mean() if (codes == code).any() else 0 for code in range(bins)]
    decoded: np.ndarray = np.array(means)[codes]
    return decoded


@pytest.mark.parametrize("name", DRAW)
def test_less_error_than_the_published_quantizer_by_thirty_percent(name):
    """The 64 largest of every 4096, in two bits each."""
    chunks = DRAW[name](np.random.default_rng(0), (128, 4096)).astype(np.float32)
    top = np.sort(np.argsort(-np.abs(chunks), axis=1)[:, :64], axis=1)
    values = np.take_along_axis(chunks, top, axis=1).ravel()
    codec = gradwire.Codec(sparsify=All(), quantize=Codebook(2), memory=gradwire.memory.NoMemory())
    frame = codec.encode(values)
    assert len(frame) == 48 + 8 + 2 * 2 * 4 + values.size // 4, "really two bits"

    def error(decoded: np.ndarray) -> float:
        return float(np.sqrt(np.mean((decoded - values) ** 2) / np.mean(values**2)))

    ours, theirs = error(gradwire.decode(frame)), error(published(values))
    assert ours <= 0.7 * theirs, (ours, theirs)


@pytest.mark.parametrize("bits", [1, 2, 3, 4])
@pytest.mark.parametrize("sparsify", [All(), TopK(ratio=0.25)])
def test_what_the_book_misses_stays_in_the_residual(bits, sparsify):
    rng = np.random.default_rng(1)
    codec = gradwire.Codec(sparsify=sparsify, quantize=Codebook(bits))
    state = codec.init_state(9000)
    total, sent = np.zeros(9000), np.zeros(9000)
    for _ in range(10):
        x = rng.laplace(size=9000).astype(np.float32)
        total += x
        sent += gradwire.decode(codec.encode(x, state))
        np.testing.assert_allclose(sent + state.residual, total, rtol=0, atol=1e-4)


@pytest.mark.parametrize("bits", [1, 2, 3, 4])
@pytest.mark.parametrize(
    "values",
    [[], [0.0], [-0.25], [0.0] * 9, [0.1, -0.1] * 3000, [0.0] * 5 + [7.0], [2.0**-149]],
)
def test_values_of_one_magnitude_are_exact(bits, values):
    x = np.array(values, np.float32)
    # One magnitude beside zero needs two.
    if bits == 1 and len(set(np.abs(x))) > 1:
        pytest.skip("one magnitude only")
    codec = gradwire.Codec(
        sparsify=All(), quantize=Codebook(bits), memory=gradwire.memory.NoMemory()
    )
    np.testing.assert_array_equal(gradwire.decode(codec.encode(x)), x)


@pytest.mark.parametrize("bits", [0, 5, 2.0, True])
def test_bits_out_of_range_are_refused(bits):
    with pytest.raises((ValueError, TypeError)):
        Codebook(bits)
