"""Step times, bytes and memory; the codec's times are given. Calibrations, measured and saved."""

import dataclasses
import itertools
import json
import math
import random
from typing import Any, cast

import numpy as np
import pytest

import gradwire
from gradwire.cost import (
    Calibration,
    Link,
    Network,
    Payload,
    Workload,
    bf16,
    calibrate,
    compressed,
    fp32,
    predict,
    simulate,
)
from gradwire.cost.calibration import CodecCost, Line, line
from gradwire.cost.exchanges import (
    DenseReduceScatter,
    GatheredFrames,
    PlainRing,
    RingAllReduce,
    SharedPositions,
    SparseReduceScatter,
)
from gradwire.cost.prediction import BucketCost, ddp_buckets, overlapped, pays_within
from gradwire.exchange import AllGather

ENCODE, DECODE = Line(0.0, 1e-9, 0.0), Line(0.0, 0.0, 1e-8)
TOPK = CodecCost(gradwire.topk(ratio=0.01), ENCODE, DECODE, 48, 32.3, 0.01, 8.0)
ONEBIT = CodecCost(gradwire.onebit(), Line(0, 2e-9, 0), Line(0, 1e-9, 0), 60, 1.1, 1.0, 8.0)
GIVEN = Calibration({"topk": TOPK, "onebit": ONEBIT}, 1e-9, 1e-10, 1)
MODEL = Workload(25_000_000, backward=0.1, other=0.05)
GIGABIT = Link(1e9, 50e-6, 5e-6)
NUMEL = 1_000_000


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
    frames = sum(method.payload(numel, tensors).nbytes for numel, _, tensors in MODEL.parts)
    assert found.memory == pytest.approx(8 * 25_000_000 + 9 * frames)
    nodes = predict(MODEL, method, Network(8, GIGABIT, node_size=4))
    assert nodes.memory < found.memory / 3


@pytest.mark.parametrize(
    ("won", "bandwidth", "found"),
    [
        (lambda at: at < 1e9, 1e6, (0.0, 1e9)),
        (lambda at: at > 1e9, 1e6, (1e9, math.inf)),  # of the nearest range
        (lambda at: 1e7 < at < 1e9, 1e8, (1e7, 1e9)),
        (lambda at: True, 1e8, (0.0, math.inf)),
        (lambda at: False, 1e8, (0.0, 0.0)),
    ],
)
def test_a_method_pays_within_a_range(won, bandwidth, found):
    def own(at):
        return 1.0 if won(at) else 3.0

    assert pays_within(own, lambda at: 2.0, bandwidth) == pytest.approx(found, rel=2e-3)


def test_a_step_with_an_infinite_link_costs_only_latency():
    found = simulate(GatheredFrames(), Payload.sparse(NUMEL, 100), Network(5, Link(math.inf, 1e-3)))
    assert found.seconds == pytest.approx(4e-3)


def test_nodes_share_their_link():
    """Eight ranks in two nodes: the link between nodes carries what two ranks would send."""
    inside = Link(1e11, latency=1e-6)
    for exchange, payload in [
        (RingAllReduce(), Payload.dense(NUMEL)),
        (GatheredFrames(), Payload.sparse(NUMEL, 10_000)),
    ]:
        divided = simulate(exchange, payload, Network(8, GIGABIT, node_size=4))
        whole = simulate(exchange, payload, Network(2, GIGABIT))
        assert 4 * divided.sent == pytest.approx(whole.sent, rel=0.02)  # each has headers
        assert divided.seconds == pytest.approx(whole.seconds, rel=0.02)
        found = simulate(exchange, payload, Network(8, GIGABIT, node_size=4, inside=inside))
        assert found.sent_inside == 2 * 3 * NUMEL  # its share to each other, twice
        spent = 2 * 3 * 8 * NUMEL / 1e11 + (1 + 3) * 1e-6
        assert found.seconds - divided.seconds == pytest.approx(spent)


def test_plain_ddp_is_one_ring_over_nodes_and_uses_no_link_inside_one():
    inside, payload = Link(1e11, 1e-6), Payload.dense(NUMEL)
    flat = simulate(PlainRing(), payload, Network(8, GIGABIT))
    nodes = simulate(PlainRing(), payload, Network(8, GIGABIT, node_size=4, inside=inside))
    assert nodes.sent + nodes.sent_inside == flat.sent == 2 * 7 / 8 * 4 * NUMEL
    assert nodes.sent == flat.sent / 4
    wire = 8 * flat.sent / 1e9
    assert nodes.seconds == pytest.approx(wire + 4 * 55e-6 + 10 * 1e-6)  # 4 of 14 rounds
    assert flat.seconds == pytest.approx(wire + 14 * 55e-6)
    alone = simulate(PlainRing(), payload, Network(4, GIGABIT, node_size=4, inside=inside))
    assert alone.seconds == simulate(PlainRing(), payload, Network(4, inside)).seconds > 0
    assert alone.sent == 0 < alone.sent_inside


def test_the_memory_of_a_gather_grows_and_that_of_a_reduce_scatter_does_not():
    payload = Payload.sparse(25_000_000, 250_000)

    def buffers(exchange, ranks):
        return simulate(exchange, payload, Network(ranks, GIGABIT)).buffers

    assert buffers(GatheredFrames(), 1000) == pytest.approx(1001 * payload.nbytes)
    assert buffers(SparseReduceScatter(), 1000) < buffers(SparseReduceScatter(), 2)
    assert buffers(SharedPositions(), 1000) == buffers(SharedPositions(), 2)


def test_positions_precede_their_values():
    payload = Payload.sparse(NUMEL, 1e4, frames=3)
    led = simulate(SharedPositions(), payload, Network(2, Link(1e9, latency=1e-4)))
    assert led.before == pytest.approx(1e-4 + 8 * payload.position_bytes / 1e9)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Link(math.nan), ValueError, "bandwidth must be above 0"),
        (lambda: Link(1e9, latency=-1), ValueError, "latency must be finite and not negative"),
        (lambda: Network(6, GIGABIT, node_size=4), ValueError, "6 ranks do not fill nodes of 4"),
        (lambda: Payload(10, 11), ValueError, "11 entries of a tensor that has 10"),
        (lambda: Workload(0, 1.0), ValueError, "numel must be at least 1"),
        (lambda: compressed("sidco", GIVEN), ValueError, "no codec 'sidco', but topk"),
        (
            lambda: compressed("topk", GIVEN, cast("Any", "ring")),
            TypeError,
            "exchange must be one of gradwire.exchange.{AllGather, .*}, got 'ring'",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize("numel", [1, 262_144, 262_145, 25_000_000])
def test_ddp_fills_a_small_bucket_first(numel):
    made = ddp_buckets(numel)
    assert sum(made) == numel
    assert made[0] == min(numel, 2**20 // 4)
    assert all(each == 25 * 2**20 // 4 for each in made[1:-1])
    assert min(made) > 0


def test_queues_one_after_the_other_are_those_of_events():
    """Against a plain loop, of buckets that all differ."""
    draw = random.Random(0)
    buckets = [BucketCost(*(draw.expovariate(1.0) for _ in range(5))) for _ in range(200)]
    ready = encoded = arrived = decoded = 0.0
    for each in buckets:
        ready += each.backward
        encoded = max(ready, encoded) + each.encode + each.before
        arrived = max(encoded, arrived) + each.exchange
        decoded = max(arrived, decoded) + each.decode
    assert overlapped(buckets) == pytest.approx(decoded)


def test_on_a_shared_processor_nothing_that_is_computed_overlaps():
    """Without a link to wait for, all work is done one after the other."""
    buckets = [BucketCost(0.1, 0.02, 0.0, 0.03)] * 4
    assert overlapped(buckets, shared=True) == pytest.approx(4 * 0.15)
    assert overlapped(buckets) == pytest.approx(4 * 0.1 + 0.05)
    for encode, exchange, decode in itertools.product((0.0, 0.01, 0.3), repeat=3):
        buckets = [BucketCost(0.1, encode, exchange, decode)] * 4
        alone, shared = overlapped(buckets), overlapped(buckets, shared=True)
        assert shared >= alone - 1e-9
        work = sum(each.backward + each.encode + each.decode for each in buckets)
        assert shared <= work + 4 * exchange + 1e-9


@pytest.mark.parametrize("seed", range(5))
def test_a_shared_processor_does_one_thing_at_a_time(seed):
    """Against a clock that ticks: decodes go first, then the encode, then the backward pass."""
    draw = random.Random(seed)
    lengths = ((5, 40), (0, 15), (0, 60), (0, 9), (0, 9))
    buckets = [BucketCost(*(draw.randint(*each) for each in lengths)) for _ in range(30)]
    found = overlapped(buckets, shared=True)
    assert found == pytest.approx(_ticked(buckets), abs=len(buckets))  # a tick at each


def _ticked(buckets):
    needed = list(itertools.accumulate(each.backward for each in buckets))
    interrupts = []
    sent = now = passed = sender = link = receiver = 0
    left = buckets[0].encode
    while sent < len(buckets):
        bucket = buckets[sent]
        if left == 0 and passed >= needed[sent] and now >= sender:
            sender = now + bucket.before
            link = max(sender, link) + bucket.exchange
            arrived = max(link, receiver)
            receiver = arrived + bucket.decode
            interrupts.append([arrived, bucket.decode])
            sent += 1
            left = buckets[sent].encode if sent < len(buckets) else 0
            continue
        due = next((each for each in interrupts if each[0] <= now and each[1]), None)
        if due is not None:
            due[1] -= 1
        elif passed >= needed[sent] and now >= sender and left:
            left -= 1
        else:
            passed += 1
        now += 1
    return max(receiver, now + sum(left for _, left in interrupts[:-1]))


@pytest.fixture(scope="module")
def calibration():
    codecs = {
        "topk": gradwire.topk(ratio=0.02),
        "onebit": gradwire.onebit(),
        "scalecom": gradwire.scalecom(ratio=0.02),
        "threshold": gradwire.threshold(threshold=1e-3),
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gradwire.cost.calibration.EVICTED", 1 << 10)
        patch.setattr("gradwire.cost.calibration.NUMELS", (1 << 12, 1 << 14))
        return calibrate(codecs, seconds=0.01)


def test_a_line_is_found_where_there_is_one_and_no_coefficient_is_negative():
    truth = Line(1e-5, 2e-9, 3e-8)
    points = [(n, k, truth(n, k)) for n in (1e3, 1e5, 1e7) for k in (1e1, 1e2, 1e3)]
    found = line(points)
    assert (found.fixed, found.per_numel, found.per_entry) == pytest.approx(
        (truth.fixed, truth.per_numel, truth.per_entry)
    )
    assert found.error < 1e-6
    found = line([(1e3, 1e3, 1.0), (1e6, 1e6, 0.5)])
    assert min(found.fixed, found.per_numel, found.per_entry) >= 0


@pytest.mark.parametrize("name", ["topk", "onebit", "scalecom"])
def test_measured_sizes_are_those_of_frames(calibration, name):
    """Of another tensor and another size than those that were measured."""
    cost = calibration.codecs[name]
    assert cost.encode(1 << 14, 300) > 0 < cost.decode(1 << 14, 300)
    numel, shape = 102_400, (800, 128)  # as many columns as measured
    codec = cost.codec.for_shape(shape)
    draw = np.random.default_rng(1)
    x = (draw.standard_normal(numel) * draw.exponential(size=numel)).astype(np.float32)
    frame = codec.encode(x, codec.init_state(numel))
    method = compressed(name, calibration)
    assert method.payload(numel).nbytes == pytest.approx(len(frame), rel=0.08)
    assert method.state_bytes == codec.init_state(numel).nbytes / numel


def test_a_codec_with_a_ratio_sends_its_ratio(calibration):
    assert calibration.codecs["topk"].share == pytest.approx(0.02, rel=0.02)
    assert calibration.codecs["onebit"].share == 1.0
    assert 0 < calibration.codecs["threshold"].share < 1


def test_a_calibration_can_be_saved_and_loaded(calibration, tmp_path):
    calibration.save(tmp_path / "calibration.json")
    assert Calibration.load(tmp_path / "calibration.json") == calibration


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda plain: "[]", "got version None"),
        (lambda plain: "{", "has no calibration"),
        (lambda plain: json.dumps({**plain, "version": 99}), "version 99"),
        (lambda plain: json.dumps({**plain, "threads": 0}), "threads must be at least 1"),
        (lambda plain: json.dumps({**plain, "codecs": {"topk": {}}}), "not a calibration"),
        (lambda plain: json.dumps({**plain, "more": 1}), "not a calibration"),
    ],
)
def test_another_file_is_refused(calibration, tmp_path, change, message):
    path = tmp_path / "calibration.json"
    path.write_text(change(calibration.to_json()))
    with pytest.raises(ValueError, match=message):
        Calibration.load(path)
