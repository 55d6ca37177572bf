"""Exchanges: what they refuse, and how they stand in a codec's configuration."""

import dataclasses

import numpy as np
import pytest

import gradwire
from gradwire.exchange import (
    AllGather,
    AllReduce,
    ByRanks,
    LeaderIndices,
    QuantizedAllReduce,
    ReduceScatter,
)
from gradwire.memory import NoMemory, Residual
from gradwire.quantize import BFloat16, Float8, Float16, Float32
from gradwire.sparsify import SID, All, Threshold, TopK

SUMS = [AllReduce(), LeaderIndices()]


def among(codec, ranks):
    """What the exchange of a codec is among so many ranks."""
    return codec.exchange.for_ranks(ranks, codec.sparsify, codec.quantize, codec.memory)


def test_a_codec_follows_the_number_of_ranks_unless_told_otherwise():
    assert gradwire.topk(0.1).exchange == gradwire.dense().exchange == ByRanks()
    for codec, owners in (
        (gradwire.topk(0.1), ReduceScatter()),
        (gradwire.adam(0.01), ReduceScatter()),
        (gradwire.adaptive(), ReduceScatter()),
        (gradwire.onebit(), QuantizedAllReduce()),
        (gradwire.qsgd(), QuantizedAllReduce()),
    ):
        found = [among(codec, ranks) for ranks in (1, 2, 7, 8, 10_000)]
        assert found == [AllGather()] * 3 + [owners] * 2
        told = dataclasses.replace(codec, exchange=AllGather())
        assert among(told, 10_000) == AllGather()


@pytest.mark.parametrize(
    "codec",
    [
        gradwire.topk(0.1, memory=NoMemory()),
        gradwire.float8(block=None),
        gradwire.dense(quantize=Float16(scaled=False)),
    ],
    ids=repr,
)
def test_what_owners_refuse_is_gathered_among_any_number_of_ranks(codec):
    assert among(codec, 10_000) == AllGather()


def test_other_exchanges_do_not_depend_on_the_number_of_ranks():
    for codec in (gradwire.scalecom(0.01), gradwire.randomk(0.01)):
        assert among(codec, 2) == among(codec, 10_000) == codec.exchange


@pytest.mark.parametrize("sparsify", [TopK(ratio=0.1), SID(0.1), Threshold(0.1)])
def test_a_sum_of_supports_that_differ_is_refused_when_the_codec_is_made(sparsify):
    with pytest.raises(ValueError, match=f"with {type(sparsify).__name__} every rank selects"):
        gradwire.Codec(sparsify=sparsify, exchange=AllReduce())


def test_a_leader_of_everything_is_refused():
    with pytest.raises(ValueError, match=r"All sends every entry; use exchange=.*AllReduce"):
        gradwire.dense(exchange=LeaderIndices())


def test_what_cannot_be_cut_or_kept_is_not_reduced_by_owners():
    with pytest.raises(
        ValueError, match=r"All sends every entry; use exchange=.*QuantizedAllReduce"
    ):
        gradwire.dense(memory=Residual(), exchange=ReduceScatter())
    text = r"NoMemory\(\) has none; use memory=gradwire.memory.Residual\(\)"
    with pytest.raises(ValueError, match=text):
        gradwire.Codec(sparsify=TopK(ratio=0.1), memory=NoMemory(), exchange=ReduceScatter())


def test_every_preset_that_sends_every_entry_and_adaptive_can_be_quantized_by_owners():
    exchange = QuantizedAllReduce()
    for name in ("onebit", "adaptive", "qsgd", "terngrad", "float8", "signsgd", "natural", "dense"):
        assert getattr(gradwire, name)(exchange=exchange).exchange == exchange
    with pytest.raises(ValueError, match=r"TopK selects some; use exchange=.*ReduceScatter\(\)"):
        gradwire.Codec(sparsify=TopK(ratio=0.1), exchange=exchange)


@pytest.mark.parametrize(
    ("quantize", "largest"),
    [
        (Float16(scaled=False), 65504),
        (Float8(block=None), 448),
        (Float8("e5m2", block=None), 57344),
    ],
    ids=repr,
)
def test_sums_that_would_saturate_unseen_are_refused_without_a_residual(quantize, largest):
    codec = gradwire.dense(quantize=quantize)
    beyond = np.full(8, 2.0 * largest, np.float32)
    sent = gradwire.decode(codec.encode(beyond, codec.init_state(8)))
    assert (sent == largest).all()
    with pytest.raises(ValueError, match=rf"saturates at {largest} .*NoMemory\(\) does not keep"):
        dataclasses.replace(codec, exchange=QuantizedAllReduce())
    kept = dataclasses.replace(codec, memory=Residual(), exchange=QuantizedAllReduce())
    state = kept.init_state(8)
    kept.encode(beyond, state)
    assert (state.residual == largest).all()
    for scaled in (Float16(), Float8(), Float8("e5m2"), BFloat16(), Float32()):
        gradwire.dense(quantize=scaled, exchange=QuantizedAllReduce())


@pytest.mark.parametrize("exchange", SUMS, ids=str)
def test_values_with_a_factor_of_their_own_are_not_added_up(exchange):
    sparsify = All() if exchange == AllReduce() else TopK(ratio=0.1)
    for quantize in (Float32(), BFloat16(), Float16(scaled=False)):
        gradwire.Codec(sparsify=sparsify, quantize=quantize, exchange=exchange)
    with pytest.raises(ValueError, match=r"use quantize=.*Float16\(scaled=False\)"):
        gradwire.Codec(sparsify=sparsify, quantize=Float16(), exchange=exchange)
