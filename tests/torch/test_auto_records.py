"""What passes of dense buckets tell of a backward pass, and of what has held it up."""

import pytest

pytest.importorskip("torch", reason="these tests need the extra [torch]")

from gradwire.torch.auto.timings import BucketPlace, BucketRecord, PassRecord, figures

PLACES = [BucketPlace((at,), 1000, 4, True, True) for at in range(3)]


def passed(ready, worked, end=1.0):
    """A pass that begins at 5, whose buckets are exchanged 0.01 s after they are ready."""
    record = PassRecord(complete=True, end=5.0 + end)
    for at, own in zip(ready, worked, strict=True):
        bucket = BucketRecord(5.0 + at, worked=None if own is None else 70.0 + own)
        bucket.done = bucket.ready + 0.01
        record.buckets.append(bucket)
    return record


def test_a_backward_pass_takes_what_its_thread_has_worked():
    found = figures(PLACES, 3, [passed((0.0, 0.3, 0.6), (0.0, 0.1, 0.25))] * 3)
    assert found is not None
    assert found.ready == pytest.approx((0.0, 0.1, 0.25))
    assert found.held == pytest.approx(0.35)
    assert found.exposed == pytest.approx(0.01)
    assert found.period == pytest.approx(1.0)
    assert found.compute == pytest.approx(1.0 - 0.01 - 0.35)
    # When buckets were exchanged is told by the clock.
    assert found.exchange == pytest.approx((0.01,) * 3)


@pytest.mark.parametrize("worked", [(None,) * 3, (0.0, 0.4, 0.9)])
def test_it_never_takes_more_than_by_the_clock(worked):
    """Not on a device either, nor with several threads, nor by a clock that runs ahead."""
    found = figures(PLACES, 3, [passed((0.0, 0.3, 0.6), worked)])
    assert found is not None
    assert found.ready == pytest.approx((0.0, 0.3, 0.6))
    assert found.held == pytest.approx(0.0)
    assert found.compute == pytest.approx(0.99)
