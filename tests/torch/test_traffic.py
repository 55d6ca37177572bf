"""What frames bring each rank beside a dense all-reduce, and what is said where it is more."""

import pytest

import gradwire
from gradwire.exchange import AllGather, AllReduce, ByRanks
from gradwire.memory import NoMemory, Residual
from gradwire.torch.engine.metrics import excess, frame_nbytes

MODEL = [1_000_000, 4_000_000, 3_000]


def said(codec, ranks, exchange=None):
    """What `attach` says of a codec with so many ranks."""
    parts = codec.sparsify, codec.quantize, codec.memory
    exchange = exchange or codec.exchange.for_ranks(ranks, *parts)
    return excess([(codec, numel) for numel in MODEL], exchange, ranks)


@pytest.mark.parametrize(
    "codec",
    [
        gradwire.topk(0.01),
        gradwire.adam(0.01),
        gradwire.sidco(0.01),
        gradwire.gaussiank(0.01),
        gradwire.onebit(),
        gradwire.qsgd(),
        gradwire.float8(),
        gradwire.scalecom(0.01),
        gradwire.randomk(0.01),
        gradwire.threshold(0.1),
        gradwire.adaptive(),
    ],
    ids=repr,
)
def test_ordinary_codecs_exceed_nothing_whatever_the_number_of_ranks(codec):
    assert [said(codec, ranks) for ranks in (1, 2, 3, 7, 8, 64, 10_000)] == [""] * 7


def test_two_ranks_are_not_told_of_headers():
    for codec in (gradwire.dense(), gradwire.topk(1.0)):
        assert said(codec, 2) == ""
    assert excess([(gradwire.dense(), 1024)], AllGather(), 2) == ""


def test_an_all_gather_among_many_ranks_is_told_with_both_figures_and_what_helps():
    """Of topk(0.01), 5.07 bytes of each of 50 030 entries, N - 1 times; 8 of each make 40 MB."""
    codec = gradwire.topk(0.01, memory=Residual())
    assert said(codec, 150, AllGather()) == ""
    text = said(codec, 200, AllGather())
    sent = sum(codec.max_encoded_len(numel) for numel in MODEL)
    assert f"With 200 ranks, each receives {199 * sent / 1e6:.4g} MB of frames per step" in text
    assert "a dense all-reduce would bring it 39.82 MB" in text
    assert "What helps: a smaller ratio; an exchange that sums or divides" in text


def test_sums_and_owners_exceed_nothing():
    everything = said(gradwire.topk(1.0, quantize=gradwire.quantize.Float32()), 8)
    assert everything == ""  # through owners: as much as dense, but for positions
    assert said(gradwire.dense(), 3, AllReduce()) == ""


def test_frames_are_as_long_as_is_said():
    """Limits would be loose where a threshold only aims at a ratio, and say nothing of others."""
    assert frame_nbytes(gradwire.gaussiank(0.01), 10**6) == frame_nbytes(gradwire.topk(0.01), 10**6)
    assert frame_nbytes(gradwire.threshold(0.1), 10**6) == 0
    assert frame_nbytes(gradwire.signsgd(), 8_000) == gradwire.signsgd().max_encoded_len(8_000)
    low = gradwire.topk(0.01, memory=NoMemory())
    assert isinstance(low.exchange, ByRanks)
    assert said(low, 200)  # which owners refuse
