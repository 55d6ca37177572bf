"""SparseLoCo: what it sends takes ten bits a value, and less is lost than as published."""

import math

import numpy as np
import pytest

import gradwire
from gradwire.memory import Residual
from gradwire.quantize import Codebook
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
