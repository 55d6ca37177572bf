"""Deadlines of tests stretch with what other programs take of the machine."""

import itertools
import time

from tests import deadlines


def test_a_limit_stretches_with_the_share_of_a_processor_that_is_left(monkeypatch):
    """The same work, on a processor of which this thread gets every fourth moment."""
    spent = itertools.count()
    monkeypatch.setattr(time, "thread_time", lambda: next(spent) * 1e-3)
    moments = iter([100.0, 100.0, 100.08])
    monkeypatch.setattr(time, "monotonic", lambda: next(moments))
    assert abs(deadlines._Slowness().now() - 4.0) < 0.01


def test_a_limit_is_never_shorter_and_ends(monkeypatch):
    monkeypatch.setattr(deadlines._SLOWNESS, "now", lambda: 3.0)
    assert deadlines.stretched(10.0) == 30.0
    began = time.monotonic()
    assert not deadlines.expires(began - 20.0, 10.0)
    assert deadlines.expires(began - 31.0, 10.0)
