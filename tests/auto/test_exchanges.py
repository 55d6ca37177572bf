"""The exchange of the codec: predicted as by `gradwire.cost`, and chosen by the number of ranks."""

import dataclasses
import itertools

import pytest

import gradwire
from gradwire._auto import FP32, Decider, Figures, Model, Setting, describe
from gradwire._auto.setting import strength
from gradwire.cost import Calibration, Link, Network, Workload, compressed, predict, simulate
from gradwire.cost.calibration import CodecCost, Line
from gradwire.cost.exchanges import DenseReduceScatter, GatheredFrames, SparseReduceScatter

RATIOS = (0.1, 0.05, 0.02, 0.01)
GATHERED = [Setting("codec", each) for each in RATIOS]
OWNED = [Setting("codec", each, "owners") for each in RATIOS]


def calibration(codec=None, share=0.01, seconds=1e-9):
    """A codec that takes a nanosecond for an entry, or so much."""
    line = Line(0.0, seconds, seconds)
    bits = 32.0 if share < 1.0 else 8.0
    cost = CodecCost(codec or gradwire.topk(ratio=0.01), line, line, 48.0, bits, share, 8.0)
    return Calibration({"codec": cost}, 1e-10, 0.0, 1)


def figures(*buckets, compute=0.2, backward=0.1):
    """Steps without any exchange, of buckets that become ready at equal distances."""
    count = len(buckets)
    return Figures(
        steps=9,
        period=compute,
        buckets=buckets,
        tensors=count,
        codable=(True,) * count,
        halvable=(True,) * count,
        ready=tuple(backward * (at + 1) / count for at in range(count)),
        exchange=(0.0,) * count,
        nbytes=(0.0,) * count,
        exposed=0.0,
    )


def model(ranks, link, *, known=None, ratios=RATIOS, owners=True, of=None):
    of = of or figures(1_000_000, 4_000_000, 4_000_000)
    return Model(of, ranks, link, known or calibration(), ratios, owners=owners)


def exchanges(plans):
    return {each.exchange for plan in plans for each in plan if each.kind == "codec"}


def best(found):
    return min(found.plans(), key=found.step)


@pytest.mark.parametrize("bandwidth", [1e6, 1e8, 1e9, 1e10])
def test_two_ranks_gather_on_any_link(bandwidth):
    assert exchanges(model(2, Link(bandwidth, 1e-4)).plans()) == {"gather"}


@pytest.mark.parametrize("ranks", [64, 1000])
@pytest.mark.parametrize("bandwidth", [1e7, 1e9])
def test_many_ranks_sum_by_owners(ranks, bandwidth):
    found = model(ranks, Link(bandwidth, 5e-5))
    assert exchanges([best(found)]) == {"owners"}
    gathered = [found.step((each,) * 3) for each in GATHERED]
    owned = [found.step((each,) * 3) for each in OWNED]
    assert all(mine < other for mine, other in zip(owned, gathered, strict=True))


@pytest.mark.parametrize("ranks", [3, 8, 1000])
def test_where_owners_are_not_supported_the_codec_gathers(ranks):
    assert exchanges(model(ranks, Link(1e7, 5e-5), owners=False).plans()) == {"gather"}


def test_every_ratio_is_predicted_with_both_exchanges_as_by_the_cost_model():
    link, known, of = Link(1e9, 1e-4), calibration(), figures(1_000_000, 4_000_000, 4_000_000)
    work = Workload(9_000_000, 0.1, 0.1, buckets=of.buckets, ready=of.ready, tensors=3, shared=True)
    for ranks, ratio in itertools.product((3, 8, 64), RATIOS):
        found = model(ranks, link)
        for name, exchange in (("gather", GatheredFrames()), ("owners", SparseReduceScatter())):
            method = compressed("codec", known, exchange)
            assert method.cost is not None
            cost = dataclasses.replace(method.cost, share=ratio)
            step = predict(work, dataclasses.replace(method, cost=cost), Network(ranks, link)).step
            assert found.step((Setting("codec", ratio, name),) * 3) == pytest.approx(step)


def test_owners_win_from_the_number_of_ranks_from_which_their_exchange_is_the_shorter_one():
    link, known, numel = Link(1e9, 1e-4), calibration(seconds=0.0), 100_000
    gather, owners = (
        compressed("codec", known, each) for each in (GatheredFrames(), SparseReduceScatter())
    )

    def shorter(ranks):
        seconds = [
            simulate(each.exchange, each.payload(numel), Network(ranks, link)).seconds
            for each in (gather, owners)
        ]
        return seconds[1] < seconds[0]

    def chosen(ranks):
        found = model(ranks, link, known=known, ratios=(0.01,), of=figures(numel))
        steps = [found.step((Setting("codec", 0.01, each),)) for each in ("gather", "owners")]
        return steps[1] < steps[0]

    counts = range(3, 200)
    assert [chosen(each) for each in counts] == [shorter(each) for each in counts]
    crossing = [each for each in counts if not shorter(each)]
    assert crossing  # latency counts most with few ranks,
    assert shorter(199)  # and bytes with many
    assert crossing == list(range(3, len(crossing) + 3))


def test_a_codec_that_sends_every_entry_is_summed_by_a_quantized_all_reduce():
    codec, link = gradwire.float8(), Link(1e9, 5e-5)
    known = calibration(codec, share=1.0)
    found = model(64, link, known=known, ratios=())
    assert exchanges(found.plans()) == {"gather", "owners"}
    of = figures(1_000_000, 4_000_000, 4_000_000)
    work = Workload(9_000_000, 0.1, 0.1, buckets=of.buckets, ready=of.ready, tensors=3, shared=True)
    method = compressed("codec", known, DenseReduceScatter())
    step = predict(work, method, Network(64, link)).step
    assert found.step((Setting("codec", None, "owners"),) * 3) == pytest.approx(step)


def test_a_mixture_may_have_both_exchanges():
    # Bytes count for the large bucket, and latency for the small one, which is the last.
    of = figures(40_000_000, 50_000, backward=0.2, compute=0.3)
    found = model(12, Link(1e9, 2e-2), known=calibration(seconds=1e-12), ratios=(0.05,), of=of)
    assert best(found) == (Setting("codec", 0.05, "owners"), Setting("codec", 0.05))
    least = min(map(found.step, itertools.product(found._by, repeat=2)))
    assert found.step(best(found)) == least


def test_sums_that_are_selected_again_leave_out_more_but_less_than_the_next_ratio():
    numels = (1000, 2000)
    total = [
        strength((each,) * 2, numels) for pair in zip(GATHERED, OWNED, strict=True) for each in pair
    ]
    assert total == sorted(set(total))


@pytest.mark.parametrize(
    ("ranks", "owners", "used", "times"),
    [(2, True, GATHERED, 1.0), (64, False, GATHERED, 32.0), (64, True, OWNED, 1.0)],
)
def test_the_step_that_leaves_the_codec_is_predicted_with_all_entries_as_they_go(
    ranks, owners, used, times
):
    found = model(ranks, Link(1e9, 5e-5), owners=owners)
    coded, dense = (used[-1],) * 3, (FP32,) * 3
    whole = found.leaving(coded, dense)
    assert whole == pytest.approx(times * found.step(dense), rel=0.35)
    part = found.leaving(coded, (FP32, *coded[1:]))
    assert found.step(coded) < part < whole
    assert found.leaving(dense, coded) == found.leaving(coded, coded) == 0.0
    for other in (GATHERED, OWNED):
        assert found.leaving(coded, (other[-1],) * 3) == 0.0


def test_a_codec_without_residuals_is_left_without_a_step_of_its_own():
    known = calibration(gradwire.float8(), share=1.0)
    eight = model(64, Link(1e9, 5e-5), known=known, ratios=())
    assert eight.leaving((Setting("codec"),) * 3, (FP32,) * 3) == 0.0


def test_a_plan_says_through_what_it_goes():
    assert str(OWNED[-1]) == "the codec at ratio 0.01 with reduce-scatter"
    assert str(Setting("codec", None, "owners")) == "the codec with reduce-scatter"
    assert describe((OWNED[0], GATHERED[0], OWNED[0])) == (
        "the codec at ratio 0.1 with reduce-scatter for 2 of 3 and the codec at ratio 0.1 "
        "for 1 of 3 buckets"
    )


class Ranks:
    """Steps that take what the model says, times a factor for each exchange."""

    def __init__(self, ranks, bandwidth, **wrong):
        self.ranks, self.link, self.wrong = ranks, Link(bandwidth, 5e-5), wrong
        self.plans = []

    def model(self, measured):
        return model(self.ranks, self.link, of=measured)

    def run(self, steps):
        """Return the decider after so many steps."""
        bare = figures(1_000_000, 4_000_000, 4_000_000)
        truth, decider, passed = model(self.ranks, self.link, of=bare), Decider((FP32,) * 3), 0
        measured = 0
        while passed < steps:
            passed += decider.due
            measured += decider.due - decider.skips
            plan = decider.plan
            self.plans.append(plan)
            period = truth.step(plan) * max(self.wrong.get(each.exchange, 1.0) for each in plan)
            seconds = [truth._by[each][at].exchange for at, each in enumerate(plan)]
            found = dataclasses.replace(
                bare,
                steps=measured,
                period=period,
                exchange=tuple(seconds),
                nbytes=tuple(4.0 * each for each in bare.buckets),
                exposed=max(0.0, period - 0.2),
            )
            decider.look(found, self)
            if not decider.keeps:
                measured = 0
        return decider


def test_many_ranks_settle_on_owners_and_few_on_an_all_gather():
    many = Ranks(64, 1e8).run(600)
    assert exchanges([many.plan]) == {"owners"}
    assert "reduce-scatter" in many.reason
    few = Ranks(2, 1e7).run(600)
    assert exchanges([few.plan]) == {"gather"}
    assert "reduce-scatter" not in few.reason


def test_owners_that_take_longer_than_predicted_are_left_after_few_trials():
    world = Ranks(64, 1e8, owners=40.0)
    decider = world.run(2000)
    assert exchanges([decider.plan]) == {"gather"}
    assert 1 <= len({plan for plan in world.plans if "owners" in exchanges([plan])}) <= 6
