"""Overlap of exchanges with the backward pass."""

import itertools
import random

import pytest

from gradwire.cost.timeline import BucketCost, ddp_buckets, overlapped


def test_without_an_exchange_a_step_is_its_backward_pass():
    found = overlapped([BucketCost(0.1, 0, 0, 0)] * 3)
    assert found.end == pytest.approx(0.3)
    assert found.exposed == pytest.approx(0.0, abs=1e-9)


def test_the_exchange_of_the_last_bucket_is_exposed():
    found = overlapped([BucketCost(0.1, 0, 0.01, 0)] * 3)
    assert found.exposed == pytest.approx(0.01)


def test_an_exchange_waits_for_its_bucket_and_for_the_one_before():
    buckets = [BucketCost(0.1, 0.02, 0.3, 0.01), BucketCost(0.1, 0.02, 0.05, 0.01)]
    found = overlapped(buckets)
    (first, second) = found.exchanged
    assert first == pytest.approx((0.12, 0.42))  # ready at 0.1, then encoded
    assert second == pytest.approx((0.42, 0.47))  # ready at 0.2, encoded at 0.22
    assert found.end == pytest.approx(0.48)


def test_a_slow_link_takes_as_long_as_the_first_encode_and_all_exchanges():
    buckets = [BucketCost(0.01, 0.002, 1.0, 0.003)] * 5
    assert overlapped(buckets).end == pytest.approx(0.01 + 0.002 + 5 + 0.003)


def test_on_a_shared_processor_nothing_that_is_computed_overlaps():
    """Without a link to wait for, all work is done one after the other."""
    buckets = [BucketCost(0.1, 0.02, 0.0, 0.03)] * 4
    assert overlapped(buckets, shared=True).end == pytest.approx(4 * 0.15)
    assert overlapped(buckets).end == pytest.approx(4 * 0.1 + 0.05)


def test_sharing_a_processor_never_helps():
    for encode, exchange, decode in itertools.product((0.0, 0.01, 0.3), repeat=3):
        buckets = [BucketCost(0.1, encode, exchange, decode)] * 4
        alone, shared = overlapped(buckets), overlapped(buckets, shared=True)
        assert shared.end >= alone.end - 1e-9
        assert alone.end >= alone.backward
        work = sum(each.backward + each.encode + each.decode for each in buckets)
        assert shared.end <= work + 4 * exchange + 1e-9


def test_nothing_takes_no_time():
    assert overlapped([]).end == 0.0


@pytest.mark.parametrize("numel", [1, 262_144, 262_145, 25_000_000])
def test_ddp_fills_a_small_bucket_first(numel):
    made = ddp_buckets(numel)
    assert sum(made) == numel
    assert made[0] == min(numel, 2**20 // 4)
    assert all(each == 25 * 2**20 // 4 for each in made[1:-1])


def test_an_explicit_bucket_size_holds_for_the_first_bucket_too():
    assert ddp_buckets(2_097_152 * 4, bucket_mb=8) == [2_097_152] * 4


def test_queues_one_after_the_other_are_those_of_events():
    """Against a plain loop, of buckets that all differ."""
    draw = random.Random(0)
    buckets = [BucketCost(*(draw.expovariate(1.0) for _ in range(4))) for _ in range(200)]
    ready = encoded = arrived = decoded = 0.0
    spans = []
    for each in buckets:
        ready += each.backward
        encoded = max(ready, encoded) + each.encode
        spans.append((max(encoded, arrived), max(encoded, arrived) + each.exchange))
        arrived = spans[-1][1]
        decoded = max(arrived, decoded) + each.decode
    found = overlapped(buckets)
    assert found.end == pytest.approx(decoded)
    assert found.backward == pytest.approx(ready)
    for span, wanted in zip(found.exchanged, spans, strict=True):
        assert span == pytest.approx(wanted)


def test_a_bucket_size_below_one_mebibyte_holds_for_the_first_bucket_too():
    assert ddp_buckets(1000, bucket_mb=400 / 2**20) == [100] * 10
    with pytest.raises(ValueError, match="numel must be at least 1"):
        ddp_buckets(0)


def test_the_encoding_thread_waits_for_what_precedes_an_exchange():
    given = [
        BucketCost(0.1, 0.02, 0.2, 0.01, before=0.15),
        BucketCost(0.1, 0.02, 0.05, 0.01),
    ]
    for shared in (False, True):
        first, second = overlapped(given, shared=shared).exchanged
        assert first == pytest.approx((0.27, 0.47))
        assert second == pytest.approx((0.47, 0.52))  # encoded from 0.27 on
        assert overlapped(given, shared=shared).end == pytest.approx(0.52 + 0.01)


def test_what_a_collective_takes_from_the_processor_delays_the_backward_pass():
    alone = [BucketCost(0.1, 0.0, 0.01, 0.0)] * 4
    given = [BucketCost(0.1, 0.0, 0.01, 0.0, processor=0.02)] * 4
    assert overlapped(given).end == pytest.approx(overlapped(alone).end)
    later = overlapped(given, shared=True).end - overlapped(alone, shared=True).end
    assert later == pytest.approx(3 * 0.02)  # when the last bucket is sent there is nothing else


@pytest.mark.parametrize("seed", range(5))
def test_a_shared_processor_does_one_thing_at_a_time(seed):
    """Against a clock that ticks: decodes go first, then the encode, then the backward pass."""
    draw = random.Random(seed)
    lengths = ((5, 40), (0, 15), (0, 60), (0, 9), (0, 9), (0, 9))
    buckets = [BucketCost(*(draw.randint(*each) for each in lengths)) for _ in range(30)]
    found = overlapped(buckets, shared=True)
    for span, wanted in zip(found.exchanged, _ticked(buckets), strict=True):
        assert span == pytest.approx(wanted, abs=len(buckets))  # a tick at each
    assert found.backward == sum(each.backward for each in buckets)


def _ticked(buckets):
    needed = list(itertools.accumulate(each.backward for each in buckets))
    spans, interrupts = [], []
    now = passed = sender = receiver = 0
    left = buckets[0].encode
    while len(spans) < len(buckets):
        bucket = buckets[len(spans)]
        if left == 0 and passed >= needed[len(spans)] and now >= sender:
            sender = now + bucket.before
            start = max(sender, spans[-1][1] if spans else 0)
            spans.append((start, start + bucket.exchange))
            arrived = max(spans[-1][1], receiver)
            receiver = arrived + bucket.decode
            interrupts.append([arrived, bucket.decode + bucket.processor])
            left = buckets[len(spans)].encode if len(spans) < len(buckets) else 0
            continue
        due = next((each for each in interrupts if each[0] <= now and each[1]), None)
        if due is not None:
            due[1] -= 1
        elif passed >= needed[len(spans)] and now >= sender and left:
            left -= 1
        else:
            passed += 1
        now += 1
    return spans
