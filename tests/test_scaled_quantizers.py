"""Quantizers with scales: their options, their presets, and codecs for a shape."""

import warnings

import numpy as np
import pytest

import gradwire
from gradwire.memory import NoMemory, Residual
from gradwire.quantize import SignScale, Ternary, TwoMeans, Uniform
from gradwire.sparsify import All, Threshold, TopK
from tests.support import FITTED


def tensor(numel=1000, seed=0):
    return np.random.default_rng(seed).standard_normal(numel).astype(np.float32)


def test_compositions():
    def send(quantize, memory):
        return gradwire.Codec(sparsify=All(), quantize=quantize, memory=memory)

    assert gradwire.onebit(column=8) == send(TwoMeans(column=8), Residual())
    assert gradwire.signsgd() == send(SignScale("mean"), Residual())
    assert gradwire.terngrad(clip=2.0) == send(Ternary(clip=2.0), NoMemory())
    assert gradwire.qsgd(8, norm="max") == send(Uniform(bits=8, norm="max"), NoMemory())


@pytest.mark.parametrize("quantize", [each for each in FITTED if each.contracts], ids=repr)
@pytest.mark.parametrize("sparsify", [All(), TopK(ratio=0.1)], ids=repr)
def test_what_is_sent_and_what_is_kept_add_up(sparsify, quantize):
    codec = gradwire.Codec(sparsify=sparsify, quantize=quantize)
    assert gradwire.Codec.from_config(codec.get_config()) == codec
    state = codec.init_state(1000)
    for step in range(3):
        x = tensor(seed=step) + state.residual
        y = gradwire.decode(codec.encode(tensor(seed=step), state))
        np.testing.assert_array_equal(state.residual, x - y)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Uniform(bits=1),
        lambda: Uniform(bits=9),
        lambda: Uniform(block=0),
        lambda: Uniform(norm="l1"),  # type: ignore[arg-type]
        lambda: Uniform(seed=-1),
        lambda: SignScale("median"),  # type: ignore[arg-type]
        lambda: TwoMeans(column=0),
        lambda: Ternary(clip=0.0),
        lambda: Ternary(clip=float("inf")),
    ],
)
def test_options_out_of_range_are_refused(make):
    with pytest.raises(ValueError, match=r"must be|above 0"):
        make()


def test_a_magnitude_that_nobody_says_is_refused():
    gradwire.Codec(sparsify=Threshold(0.5), quantize=SignScale("threshold"))
    for sparsify, scale in [(All(), "threshold"), (TopK(k=3), "bin-max")]:
        with pytest.raises(ValueError, match="takes its magnitude from the sparsifier"):
            gradwire.Codec(sparsify=sparsify, quantize=SignScale(scale))


@pytest.mark.parametrize("make", [gradwire.onebit, gradwire.signsgd])
def test_signs_without_a_memory_are_warned_of_where_the_codec_is_made(make):
    with pytest.warns(UserWarning, match="without a memory") as caught:
        make(memory=NoMemory())
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make()


def test_codecs_that_draw_need_a_state():
    for codec in (gradwire.terngrad(), gradwire.qsgd()):
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


@pytest.mark.parametrize("quantize", [Ternary(clip=None), Uniform(bits=2, block=1 << 30)], ids=repr)
def test_what_is_nearly_nothing_is_not_made_something(quantize):
    """Four million values of 1e-12 beside a one: 10 became ones in 40 steps, 2e-4 should."""
    codec = gradwire.Codec(sparsify=All(), quantize=quantize, memory=NoMemory())
    x = np.full(4_000_000, 1e-12, np.float32)
    x[0] = 1.0
    state, out = codec.init_state(x.size), np.empty(x.size, np.float32)
    total = 0.0
    for _ in range(40):
        gradwire.decode(codec.encode(x, state), out=out)
        total += float(out[1:].sum(dtype=np.float64))
    assert total < 1.0
