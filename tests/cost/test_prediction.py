"""Step times, and the link below which a codec pays. The codec's times are given, not measured."""

import dataclasses
import math

import pytest

import gradwire
from gradwire.cost import (
    Calibration,
    Link,
    Network,
    Workload,
    bf16,
    break_even,
    compressed,
    fp32,
    predict,
)
from gradwire.cost.calibration import CodecCost, Line
from gradwire.cost.exchanges import DenseReduceScatter, GatheredFrames, SparseReduceScatter
from gradwire.cost.prediction import FASTEST, SLOWEST, pays_within
from gradwire.exchange import AllGather

ENCODE, DECODE = Line(0.0, 1e-9, 0.0), Line(0.0, 0.0, 1e-8)
TOPK = CodecCost(gradwire.topk(ratio=0.01), ENCODE, DECODE, 48, 32.3, 0.01, 8.0)
ONEBIT = CodecCost(gradwire.onebit(), Line(0, 2e-9, 0), Line(0, 1e-9, 0), 60, 1.1, 1.0, 8.0)
GIVEN = Calibration({"topk": TOPK, "onebit": ONEBIT}, 1e-9, 1e-10, 1)
MODEL = Workload(25_000_000, backward=0.1, other=0.05)
GIGABIT = Link(1e9, 50e-6, 5e-6)


def step(method, ranks=8, link=GIGABIT, workload=MODEL):
    return predict(workload, method, Network(ranks, link)).step


def test_one_rank_takes_what_it_computes():
    for method in (fp32(), bf16(GIVEN), compressed("topk", GIVEN)):
        found = predict(MODEL, method, Network(1, GIGABIT))
        assert found.step == pytest.approx(0.15)
        assert (found.sent, found.memory) == (0, 0)


def test_a_slow_dense_step_is_its_exchange():
    """Two ranks and 100 MB: 0.8 s. The first MiB is there before the next bucket is ready."""
    found = predict(MODEL, fp32(), Network(2, Link(1e9)))
    ready, rest = 0.1 * 6_815_744 / 25_000_000, 0.8 - 2**20 * 8 / 1e9
    assert found.step == pytest.approx(0.05 + ready + rest, rel=1e-6)
    assert found.exposed == pytest.approx(ready + rest - 0.1, rel=1e-6)
    assert found.sent == 100e6


def test_the_buckets_of_a_prediction_are_its_sums():
    found = predict(MODEL, compressed("topk", GIVEN), Network(8, GIGABIT))
    assert len(found.buckets) == len(found.exchanged) == 5
    assert sum(each.sent for each in found.exchanged) == pytest.approx(found.sent)
    assert [each.exchange for each in found.buckets] == [each.seconds for each in found.exchanged]
    assert sum(each.backward for each in found.buckets) == pytest.approx(0.1)


def test_buckets_are_ready_when_it_is_said():
    given = Workload(300, backward=0.1, buckets=[100, 200], ready=[0.08, 0.1])
    found = predict(given, fp32(), Network(2, Link(math.inf, latency=0.01)))
    assert found.timeline.exchanged == (
        pytest.approx((0.08, 0.10)),
        pytest.approx((0.10, 0.12)),
    )


def test_decoding_an_all_gather_grows_with_ranks():
    def decode(method, ranks):
        return sum(each.decode for each in predict(MODEL, method, Network(ranks, GIGABIT)).buckets)

    gathered, scattered = (
        compressed("topk", GIVEN, exchange)
        for exchange in (GatheredFrames(), SparseReduceScatter())
    )
    clear = 25_000_000 * 1e-10
    assert decode(gathered, 64) == pytest.approx(clear + 64 * 250_000 * 1e-8)
    assert decode(scattered, 64) == pytest.approx(clear + 2 * 250_000 * 1e-8)


@pytest.mark.parametrize(
    ("name", "owners"), [("topk", SparseReduceScatter()), ("onebit", DenseReduceScatter())]
)
def test_a_codec_without_an_exchange_of_its_own_goes_as_attach_sends_it(name, owners):
    """Gathered among few ranks and between nodes, by owners among many ranks without nodes."""
    method = compressed(name, GIVEN)
    for network, exchange in (
        (Network(7, GIGABIT), GatheredFrames()),
        (Network(8, GIGABIT), owners),
        (Network(64, GIGABIT), owners),
        (Network(64, GIGABIT, node_size=8), GatheredFrames()),
    ):
        found = predict(MODEL, method, network)
        assert found.method.exchange == exchange
        other = predict(MODEL, compressed(name, GIVEN, exchange), network)
        assert (found.step, found.sent, found.memory) == (other.step, other.sent, other.memory)
    told = dataclasses.replace(GIVEN.codecs[name].codec, exchange=AllGather())
    costs = {name: dataclasses.replace(GIVEN.codecs[name], codec=told)}
    method = compressed(name, dataclasses.replace(GIVEN, codecs=costs))
    assert predict(MODEL, method, Network(64, GIGABIT)).method.exchange == GatheredFrames()


def test_memory_is_states_and_what_is_exchanged():
    method = compressed("topk", GIVEN, GatheredFrames())
    found = predict(MODEL, method, Network(8, GIGABIT))
    frames = sum(method.payload(numel, tensors).nbytes for numel, _, tensors in MODEL.parts())
    assert found.memory == pytest.approx(8 * 25_000_000 + 9 * frames)
    nodes = predict(MODEL, method, Network(8, GIGABIT, node_size=4))
    assert nodes.memory < found.memory / 3


def test_a_method_with_another_share_sends_and_decodes_as_much_more():
    method = compressed("topk", GIVEN)
    more = method.with_share(0.02)
    assert more.payload(10**6).entries == 2 * method.payload(10**6).entries == 20_000
    assert more.decode_seconds(10**6, 8) - method.decode_seconds(10**6, 8) == pytest.approx(
        8 * DECODE(0, 10_000, 0)
    )
    assert more.with_share(TOPK.share) == method


def test_at_the_break_even_link_both_take_as_long():
    method = compressed("topk", GIVEN)
    speed = break_even(MODEL, method, Network(8, GIGABIT), [fp32(), bf16(GIVEN)])
    assert 1e9 < speed < 1e12
    below, above = (Link(speed * factor, 50e-6, 5e-6) for factor in (0.99, 1.01))
    best = [min(step(fp32(), link=each), step(bf16(GIVEN), link=each)) for each in (below, above)]
    assert step(method, link=below) < best[0]
    assert step(method, link=above) > best[1]


def test_what_sends_more_than_dense_never_pays():
    method = compressed("topk", GIVEN, GatheredFrames())
    assert break_even(MODEL, method, Network(10_000, GIGABIT), [fp32()]) == 0.0


def test_what_is_slower_on_slow_links_does_not_pay_below_a_fast_one():
    """4096 ranks: fewer rounds than dense rings, but 4095 frames of each bucket arrive."""
    topk = dataclasses.replace(TOPK, decode=Line(0.0, 0.0, 0.0), share=0.001)
    known = Calibration({"topk": topk}, 1e-9, 1e-10, 1)
    method = compressed("topk", known, GatheredFrames())
    network = Network(4096, GIGABIT)

    def wins(bandwidth):
        link = Link(bandwidth, 50e-6, 5e-6)
        return step(method, 4096, link) < step(fp32(), 4096, link)

    assert wins(math.inf)
    assert not wins(1e9)
    assert break_even(MODEL, method, network, [fp32()]) == 0.0


def test_what_pays_again_on_fast_links_pays_below_the_first_that_it_loses_on():
    def own(bandwidth):
        return 1.0 if bandwidth < 1e6 or bandwidth > 1e9 else 3.0

    found = pays_within(own, lambda bandwidth: 2.0, SLOWEST)
    assert found == (0.0, pytest.approx(1e6, rel=1e-3))


@pytest.mark.parametrize(
    ("won", "bandwidth", "found"),
    [
        ([(0.0, 3e6)], 1e9, (0.0, 3e6)),
        ([(3e6, math.inf)], 1e9, (3e6, math.inf)),
        ([(0.0, 2e5), (3e6, 7e8)], 1e8, (3e6, 7e8)),  # the range that the link is in
        ([(0.0, 2e5), (3e6, 7e8)], 9e8, (3e6, 7e8)),  # the nearest
        ([(0.0, 2e5), (3e6, 7e8)], 3e4, (0.0, 2e5)),
        ([(0.999e9, 1.001e9)], 1e9, (0.999e9, 1.001e9)),  # between two links that are tried anyway
        ([(0.0, math.inf)], 1e9, (0.0, math.inf)),
        ([], 1e9, (0.0, 0.0)),
        ([(2 * FASTEST, math.inf)], 1e9, (0.0, 0.0)),
        ([(0.0, 2 * FASTEST)], 1e9, (0.0, math.inf)),  # faster links are not tried
    ],
)
def test_a_method_pays_within_a_range(won, bandwidth, found):
    def own(speed):
        return 0.0 if any(low <= speed <= high for low, high in won) else 2.0

    assert pays_within(own, lambda speed: 1.0, bandwidth) == pytest.approx(found, rel=1e-3)


def test_a_model_of_many_buckets_is_the_sum_of_them():
    """Buckets that are alike are computed once: here, a thousand of two kinds."""
    given = Workload(150_000, 0.1, buckets=[100, 200] * 500)
    found = predict(given, compressed("topk", GIVEN), Network(8, GIGABIT))
    assert len(found.exchanged) == len(found.buckets) == 1000
    assert found.exchanged[2] == found.exchanged[0] != found.exchanged[1]
    assert [each.backward for each in found.buckets[:2]] == pytest.approx([0.1 / 1500, 0.2 / 1500])
    assert found.sent == pytest.approx(sum(each.sent for each in found.exchanged))


def test_what_waits_for_fewer_messages_always_pays():
    """With a latency of a second, all but the number of rounds is nothing."""
    far = Network(8, Link(1e9, latency=1.0))
    method = compressed("topk", GIVEN, SparseReduceScatter())
    assert math.isinf(break_even(MODEL, method, far, [fp32(), bf16(GIVEN)]))


def test_cores_that_are_shared_make_a_step_longer():
    shared, apart = MODEL, dataclasses.replace(MODEL, shared=False)
    fast = Link(1e12)
    assert step(compressed("onebit", GIVEN), 2, fast, shared) == pytest.approx(
        0.15 + 25_000_000 * (2e-9 + 2 * 1e-9 + 1e-10), rel=1e-3
    )
    assert step(compressed("onebit", GIVEN), 2, fast, apart) < step(
        compressed("onebit", GIVEN), 2, fast, shared
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Workload(0, 0.1), "numel must be at least 1"),
        (lambda: Workload(10, -1.0), "backward must be finite and not negative"),
        (lambda: Workload(10, 0.1, buckets=[5, 6]), "must hold the 10 entries of the model"),
        (lambda: Workload(10, 0.1, buckets=[5, 5], ready=[0.1]), "ready must be 2 ascending"),
        (lambda: Workload(10, 0.1, buckets=[5, 5], ready=[0.1, 0.2]), "ready must be 2 ascending"),
        (lambda: fp32().with_share(0.5), "fp32 has no codec"),
        (lambda: compressed("topk", GIVEN).with_share(0.0), "share must be greater than 0"),
        (
            lambda: break_even(MODEL, fp32(), Network(2, GIGABIT), []),
            "a method to compare with",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
