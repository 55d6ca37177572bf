"""SparseLoCo: what it sends takes ten bits a value, and less is lost than as published."""

import math

import numpy as np
import pytest

import gradwire
from gradwire.memory import Residual
from gradwire.quantize import Codebook, Float32
from gradwire.sparsify import ChunkTopK

SHAPE = (2048, 2048)
LAWS = {
    "gaussian": lambda rng: rng.standard_normal(SHAPE),
    "laplace": lambda rng: rng.laplace(size=SHAPE),
    "t3": lambda rng: rng.standard_t(3, SHAPE),
}


def test_composition():
    assert gradwire.sparseloco() == gradwire.Codec(
        sparsify=ChunkTopK(4096, 64, tile=(64, 64)),
        quantize=Codebook(2),
        memory=Residual(decay=0.95),
    )


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("indices", ["auto", "rice"])
def test_an_entry_takes_less_than_ten_bits_and_a_half_all_told(law, indices):
    x = LAWS[law](np.random.default_rng(1)).astype(np.float32)
    preset = gradwire.sparseloco().for_shape(SHAPE)
    codec = gradwire.Codec.from_config(preset.get_config() | {"indices": indices})
    frame = codec.encode(x, codec.init_state(x.size))
    assert frame.count == x.size // 64
    assert frame.nbytes * 8 <= 10.5 * frame.count
    # Nothing can take less than log2 C(4096, 64) / 64 bits a position, tile by tile.
    n, k = 4096, 64
    ways = (math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)) / math.log(2)
    assert frame.header()["index_nbytes"] * 8 <= (ways / k + 0.25) * frame.count


def published(values: np.ndarray) -> np.ndarray:
    """Round as tplr-ai/templar does: bins of 1.5 deviations around the mean, and their means."""
    shift = values.mean()
    centred = values - shift
    scale = 6 * centred.std(ddof=1) / 4
    codes = np.clip(np.round(centred / scale + 2), 0, 3).astype(int)
    means = [centred[codes == code].mean() if (codes == code).any() else 0 for code in range(4)]
    decoded: np.ndarray = np.array(means)[codes] + shift
    return decoded


@pytest.mark.parametrize("law", LAWS)
def test_less_is_lost_than_by_the_published_quantizer(law):
    x = LAWS[law](np.random.default_rng(2)).astype(np.float32)
    exact = gradwire.sparseloco(quantize=Float32()).for_shape(SHAPE)
    ours = gradwire.sparseloco().for_shape(SHAPE)
    values = exact.encode(x, exact.init_state(x.size)).values()
    rounded = ours.encode(x, ours.init_state(x.size)).values()

    def error(sent: np.ndarray) -> float:
        return float(np.linalg.norm(sent - values))

    assert error(rounded) <= 0.7 * error(published(values))


def test_the_residual_fades_and_what_was_sent_is_gone():
    shape = (100, 130)
    codec = gradwire.sparseloco().for_shape(shape)
    state = codec.init_state(100 * 130)
    x = np.random.default_rng(3).standard_normal(shape, dtype=np.float32)
    first = gradwire.decode(codec.encode(x, state))
    assert np.array_equal(state.residual, x.ravel() - first)
    total = x.ravel() + np.float32(0.95) * state.residual
    second = gradwire.decode(codec.encode(x, state))
    assert np.array_equal(state.residual, total - second)
