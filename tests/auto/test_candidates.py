"""Which plans are tried, by predictions, and what a comparison may cost."""

import dataclasses

import pytest

from gradwire._auto import BF16, FP32, Setting
from gradwire._auto.candidates import SEEN, UNSEEN, challenge, estimate, promising
from gradwire._auto.measurements import Measurements
from gradwire.cost import Link
from tests.auto.test_exchanges import figures, model
from tests.auto.test_models import with_a_sparse_one
from tests.auto.world import World, fresh

CODEC = Setting("codec", 0.01)
ALL = (CODEC,) * 3
DENSE, CODED = (FP32,) * 3, (Setting("codec", 0.1),) * 3


def known_with(found, *timed):
    """Remember plans that have taken so many times their prediction."""
    known, of = Measurements(), World(1e9).figures((FP32,) * 3, 9)
    for plan, factor in timed:
        known.note(plan, dataclasses.replace(of, period=factor * found.step(plan)), 0)
    return known


def test_a_codec_in_one_small_bucket_tells_little_of_the_codec_in_all():
    """Predicted a little slower than the mixture, as it was unshaped, it may take far less."""
    found = model(2, Link(1e9, 1e-4), ratios=(0.01,))
    small = (CODEC, FP32, FP32)
    known = known_with(found, (small, 1.0))
    predicted, least = estimate(found, known, ALL)
    assert predicted == pytest.approx(found.step(ALL))
    assert least == pytest.approx(max(found.compute - 0.05, UNSEEN * predicted))
    # Of most buckets it tells something.
    large = (FP32, CODEC, CODEC)
    predicted, _ = estimate(found, known_with(found, (large, 1.2)), ALL)
    assert predicted == pytest.approx(1.2 * found.step(ALL))


def test_what_is_known_of_each_part_corrects_a_mixture_by_its_share():
    found = model(2, Link(1e9, 1e-4), ratios=(0.01,))
    known = known_with(found, ((FP32,) * 3, 1.0), (ALL, 0.5))
    mixed = (CODEC, FP32, FP32)
    share = found.figures.buckets[0] / sum(found.figures.buckets)
    predicted, least = estimate(found, known, mixed)
    assert predicted == pytest.approx(0.5**share * found.step(mixed))
    assert least == pytest.approx(max(found.compute - 0.05, SEEN * predicted))
    unseen = (CODEC, BF16, BF16)
    predicted, least = estimate(found, known, unseen)
    mean = share * SEEN + (1.0 - share) * UNSEEN
    assert least == pytest.approx(max(found.compute - 0.05, mean * predicted))


def test_a_sparse_table_does_not_make_sure_of_what_the_codec_takes():
    """It is gathered whatever the plan, however many entries it has."""
    of = with_a_sparse_one(figures(1_000_000, 4_000_000))
    found = model(2, Link(1e7, 1e-4), ratios=(0.01,), of=of)
    known = known_with(found, ((FP32,) * 3, 1.0))
    plan = (CODEC, FP32, CODEC)
    predicted, least = estimate(found, known, plan)
    assert least == pytest.approx(UNSEEN * predicted, rel=1e-3)


def test_the_codec_in_all_buckets_is_tried_after_a_mixture_that_kept_its_promise():
    """All predictions are right but that of the codec in all buckets, which is close to them."""
    found = model(2, Link(1e10, 1e-6), ratios=(0.01,))
    small = (CODEC, FP32, FP32)
    assert 0.8 * found.step(ALL) < found.step(small) < found.step(ALL)
    known = known_with(found, *(((kind,) * 3, 1.0) for kind in (FP32, BF16)), (small, 1.0))
    assert promising(found, known, 0) == ALL


@pytest.mark.parametrize(("used", "other"), [(DENSE, CODED), (CODED, DENSE)])
def test_a_comparison_loses_the_step_that_sends_all_there_or_on_the_way_back(used, other):
    world, known, found = World(1e9), Measurements(), model(2, Link(1e9, 1e-4), ratios=(0.1,))
    for plan in (used, other):  # as fast as each other
        known.note(plan, world.figures(DENSE, 9), 0)
    tried = challenge(found, known, used, 10_000, 2)
    assert tried is not None
    assert tried.plan == other
    all_sent = found.leaving(CODED, DENSE)
    assert tried.lost == pytest.approx(all_sent)
    assert tried.leaving == (all_sent if used == CODED else 0.0)


def test_steps_of_a_minute_are_not_repeated_for_long_where_plans_are_close():
    world, decider = World(3e7, compute=60.0), fresh()
    world.run(decider, 80)
    spans, before, begun = [], DENSE, 0
    for at, plan in world.looks:
        if plan != before:
            spans.append(at - begun)
            before, begun = plan, at
    assert len(spans) > 2
    assert max(spans) <= 5
