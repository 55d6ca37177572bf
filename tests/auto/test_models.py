"""Predictions for buckets that are not as others, and the link that all-reduces have shown."""

import dataclasses

import pytest

from gradwire._auto import BF16, FP32, Figures, Model, Setting, combined
from gradwire.cost import Link
from gradwire.torch.auto.probes import link_of
from tests.auto.test_exchanges import calibration, figures
from tests.auto.world import RATIOS

CODEC = Setting("codec", 0.01)
SLOW = Link(1e8, 1e-4)


def with_a_sparse_one(figures: Figures, seconds: float = 0.005) -> Figures:
    """Put a sparse table of fifty million entries between the buckets of a dense step."""
    nbytes = [4.0 * each for each in figures.buckets]
    return dataclasses.replace(
        figures,
        buckets=(*figures.buckets[:-1], 50_000_000, figures.buckets[-1]),
        codable=(*figures.codable[:-1], False, True),
        halvable=(*figures.halvable[:-1], False, True),
        ready=(*figures.ready[:-1], figures.ready[-1], figures.ready[-1]),
        exchange=(*figures.exchange[:-1], seconds, figures.exchange[-1]),
        nbytes=(*nbytes[:-1], 0.0, nbytes[-1]),
    )


def test_a_sparse_bucket_takes_what_was_measured_whatever_its_table_has():
    plain = figures(1_000_000, 4_000_000)
    without = Model(plain, 2, SLOW, calibration(), RATIOS)
    found = Model(with_a_sparse_one(plain), 2, SLOW, calibration(), RATIOS)
    for setting in (FP32, BF16, CODEC):
        step = found.step((setting, FP32, setting))
        assert step == pytest.approx(without.step((setting, setting)) + 0.005, abs=0.005)
    assert found.step((FP32,) * 3) > 5.0 * found.step((CODEC, FP32, CODEC))
    # What sends all entries has none of the table, either.
    leaving = found.leaving((CODEC, FP32, CODEC), (FP32,) * 3)
    assert leaving == pytest.approx(without.leaving((CODEC,) * 2, (FP32,) * 2), abs=0.01)


@pytest.mark.parametrize("ranks", [2, 8])
def test_a_last_bucket_that_cannot_be_coded_goes_with_those_that_are(ranks):
    of = dataclasses.replace(figures(1_000_000, 4_000_000), codable=(True, False))
    gathered, reduced = (
        Model(of, ranks, SLOW, calibration(), RATIOS, owners=owners) for owners in (False, True)
    )
    plan = (CODEC, FP32)
    if ranks == 2:  # which send as many bytes by either
        assert gathered.step(plan) == pytest.approx(reduced.step(plan), rel=0.01)
    else:
        frames = 8.0 * 4 * 4_000_000 * (ranks - 1) / SLOW.bandwidth
        assert gathered.step(plan) > frames > 2.0 * reduced.step(plan)
        assert min(gathered.plans(), key=gathered.step) in [(FP32, FP32), (BF16, BF16)]
    assert gathered.step((FP32, FP32)) == pytest.approx(reduced.step((FP32, FP32)))


def dense(exchange, nbytes):
    of = figures(1_000_000, 1_000_000)
    return dataclasses.replace(of, exchange=exchange, nbytes=nbytes)


def test_bytes_count_also_of_a_bucket_that_ended_before_the_one_ahead_of_it():
    """All-reduces go by side by side: both together took a second."""
    link = link_of(dense((1.0, 0.0), (4e6, 4e6)), 2, 0.0)
    assert link.bandwidth == pytest.approx(8.0 * 8e6)
    sparse = link_of(dense((1.0, 0.5), (4e6, 0.0)), 2, 0.0)
    assert sparse.bandwidth == pytest.approx(8.0 * 4e6)


@pytest.mark.parametrize("nbytes", [(0.0, 0.0), (4e6, 4e6)])
def test_exchanges_that_take_no_time_are_of_a_link_without_a_limit(nbytes):
    assert link_of(dense((0.0, 0.0), nbytes), 2, 1e-4).bandwidth == 1e15


def test_what_held_up_a_dense_backward_pass_is_not_what_the_codec_takes():
    """On a fast link, all-reduces take the processor: a step seems to compute for longer."""
    bare = figures(1_000_000, 4_000_000)
    seen = dataclasses.replace(bare, period=bare.period + 0.05, held=0.05)
    found, true = (Model(of, 2, SLOW, calibration(), RATIOS) for of in (seen, bare))
    assert found.compute == pytest.approx(true.compute)
    assert found.step((CODEC, CODEC)) == pytest.approx(true.step((CODEC, CODEC)))


def test_ranks_agree_on_what_held_up_the_one_that_was_held_up_least():
    one, other = (dataclasses.replace(figures(9), held=held) for held in (0.02, 0.03))
    assert combined([one, other]) == combined([other, one])
    assert combined([one, other]).held == 0.02
