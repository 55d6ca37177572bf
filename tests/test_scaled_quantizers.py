"""Quantizers with scales: their options, their presets, and codecs for a shape."""

import warnings

import numpy as np
import pytest

import gradwire
from gradwire.memory import NoMemory, Residual
from gradwire.quantize import SignScale, Ternary, TwoMeans, Uniform
from gradwire.sparsify import All


def tensor(numel=1000, seed=0):
    return np.random.default_rng(seed).standard_normal(numel).astype(np.float32)


def test_compositions():
    def send(quantize, memory):
        return gradwire.Codec(sparsify=All(), quantize=quantize, memory=memory)

    assert gradwire.onebit(column=8) == send(TwoMeans(column=8), Residual())
    assert gradwire.signsgd() == send(SignScale("mean"), Residual())
    assert gradwire.terngrad(clip=2.0) == send(Ternary(clip=2.0), NoMemory())
    assert gradwire.qsgd(8, norm="max") == send(Uniform(bits=8, norm="max"), NoMemory())


@pytest.mark.parametrize("make", [gradwire.onebit, gradwire.signsgd])
def test_signs_without_a_memory_are_warned_of_where_the_codec_is_made(make):
    with pytest.warns(UserWarning, match="without a memory") as caught:
        make(memory=NoMemory())
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make()


def test_codecs_that_draw_need_a_state():
    for codec in (gradwire.terngrad(), gradwire.qsgd(), gradwire.natural()):
        with pytest.raises(ValueError, match="draws random numbers"):
            codec.encode(tensor())
        state = codec.init_state(1000, name="layer", stream=2)
        frames = [bytes(codec.encode(tensor(), state)) for _ in range(2)]
        assert frames[0] != frames[1]
        again = codec.init_state(1000, name="layer", stream=2)
        assert bytes(codec.encode(tensor(), again)) == frames[0]
        other = codec.init_state(1000, name="layer", stream=3)
        assert bytes(codec.encode(tensor(), other)) != frames[0]


def test_a_shape_says_what_a_column_is():
    codec = gradwire.onebit()
    assert codec.for_shape((30, 20)) == gradwire.onebit(column=20)
    assert codec.for_shape((8, 3, 5, 5)) == gradwire.onebit(column=75)
    assert codec.for_shape((600,)) == gradwire.onebit(column=600)
    assert codec.for_shape(()) == gradwire.onebit(column=1)
    assert codec.for_shape((0, 4)).quantize == TwoMeans(column=4)
    fixed = gradwire.onebit(column=7)
    assert fixed.for_shape((30, 20)) is fixed
    assert gradwire.topk(0.1).for_shape((30, 20)) == gradwire.topk(0.1)


def test_an_open_codec_takes_flat_tensors_only():
    codec, x = gradwire.onebit(), tensor(600).reshape(30, 20)
    with pytest.raises(ValueError, match=r"codec\.for_shape\(\(30, 20\)\)"):
        codec.encode(x, codec.init_state(600))
    shaped = codec.for_shape(x.shape)
    y = gradwire.decode(shaped.encode(x, shaped.init_state(600))).reshape(30, 20)
    for row, sent in zip(x, y, strict=True):
        means = np.where(row >= 0, row[row >= 0].mean(), row[row < 0].mean())
        np.testing.assert_allclose(sent, means, rtol=1e-5)
    flat = codec.encode(x.ravel(), codec.init_state(600))
    assert len(np.unique(gradwire.decode(flat))) == 2
