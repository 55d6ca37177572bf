"""The affine grid as a quantizer of codecs."""

import numpy as np
import pytest

import gradwire
from gradwire.memory import NoMemory, Residual
from gradwire.quantize import Affine
from gradwire.sparsify import All

FITS = ("range", "zero", "sawb", "squares")


def dense(quantize: Affine) -> gradwire.Codec:
    return gradwire.Codec(sparsify=All(), quantize=quantize, memory=NoMemory())


def weights(*shape: int) -> np.ndarray:
    return np.random.default_rng(29).normal(scale=0.05, size=shape).astype(np.float32)


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
