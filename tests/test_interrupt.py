"""Ctrl-C during an encode: the frame, or the state as it was before."""

import dataclasses
import sys
from typing import ClassVar

import numpy as np
import pytest

import gradwire
from tests.support import run_python

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")

COMMON = """
import signal
import sys
import time

import numpy as np

import gradwire

N = 2_000_000
rng = np.random.default_rng(5)
X = rng.standard_normal(N).astype(np.float32)
SPARSIFIERS = {
    "topk": gradwire.sparsify.TopK(ratio=0.05),
    "dense": gradwire.sparsify.All(),
    "threshold": gradwire.sparsify.Threshold(0.5),
    "custom": None,
}
gradwire.set_num_threads(1)


def codec_of(kind):
    return gradwire.Codec(sparsify=SPARSIFIERS[kind])


def same(a, b):
    return np.array_equal(a["residual"], b["residual"]) and all(
        a[k] == b[k] for k in ("step", "scalars")
    )


def duration(codec):
    state = codec.init_state(N)
    codec.encode(X, state)
    begin = time.perf_counter()
    codec.encode(X, state)
    return time.perf_counter() - begin
"""

INTERRUPTED = (
    COMMON
    + """
kind = sys.argv[1]
codec = codec_of(kind)
state, expected = codec.init_state(N), codec.init_state(N)
frame = codec.encode(X, expected)
assert codec.encode(X, state) == frame
undone = 0
for share in (*np.linspace(0.05, 0.95, 10), *np.linspace(0.99, 1.01, 10)):
    before = state.state_dict()
    frame = codec.encode(X, expected)
    # Both are set before the timer, which may ring anywhere from then on.
    mine = None
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, share * SECONDS)
            mine = codec.encode(X, state)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        if mine is None:
            assert same(state.state_dict(), before)
            undone += 1
            mine = codec.encode(X, state)
    assert mine == frame
    assert same(state.state_dict(), expected.state_dict())
assert undone
print("well")
"""
)

HEAD = """
signal.signal(signal.SIGALRM, signal.default_int_handler)
SECONDS = duration(codec_of(sys.argv[1]))
"""


@pytest.mark.parametrize("kind", ["topk", "dense", "threshold"])
def test_either_the_frame_or_the_state_as_before(kind):
    source = INTERRUPTED.replace("kind =", f"{HEAD}\nkind =", 1)
    assert run_python(source, kind).split() == ["well"]


# What the interpreter does with a signal that comes as a call into the core returns: the call is
# done, and raises. Here a profiler does so, after every call of this name.
PLACES = np.array([3, 70, 99], np.uint32)
WAYS = {
    "encode": lambda codec, x, state, out: codec.encode(x, state),
    "encode_into": lambda codec, x, state, out: codec.encode_into(x, state, out),
    "encode_at": lambda codec, x, state, out: codec.encode_at(x, state, PLACES),
    "flush": lambda codec, x, state, out: codec.flush(state),
}


@dataclasses.dataclass(frozen=True, repr=False)
class Largest(gradwire.extension.Sparsifier):
    """The three largest entries."""

    kind: ClassVar[str] = "test_largest"

    def select(self, values, *, step, key):
        return np.sort(np.argsort(np.abs(values))[-3:])

    def max_count(self, numel):
        return 3


def interrupted(name, call):
    def after(frame, event, function):
        if event == "c_return" and function.__name__ == name:
            raise KeyboardInterrupt

    sys.setprofile(after)
    try:
        with pytest.raises(KeyboardInterrupt) as raised:
            call()
    finally:
        sys.setprofile(None)
    return raised.value


@pytest.mark.parametrize("sparsify", [gradwire.sparsify.TopK(ratio=0.05), Largest()])
@pytest.mark.parametrize("way", WAYS)
def test_nothing_is_lost_as_the_call_returns(way, sparsify, rng):
    codec = gradwire.Codec(sparsify=sparsify)
    x = rng.standard_normal(100).astype(np.float32)
    state, expected = codec.init_state(100), codec.init_state(100)
    out, right = np.zeros((2, 1000), np.uint8)
    for each in (state, expected):
        codec.encode(x, each)
    before = state.state_dict()
    made = WAYS[way](codec, x, expected, right)
    # What a sparsifier in Python has selected is encoded at these positions.
    given = isinstance(sparsify, gradwire.extension.Sparsifier) and "_at" not in way
    name = way.replace("encode", "encode_at") if given else way
    error = interrupted(name, lambda: WAYS[way](codec, x, state, out))
    assert not hasattr(error, "frame")
    assert not hasattr(error, "nbytes")
    np.testing.assert_equal(state.state_dict(), before)
    assert WAYS[way](codec, x, state, out) == made
    np.testing.assert_equal(state.state_dict(), expected.state_dict())
    np.testing.assert_equal(out, right)


def test_what_a_handler_encoded_is_not_undone(rng):
    codec = gradwire.topk(0.05)
    x = rng.standard_normal(100).astype(np.float32)
    state, expected = codec.init_state(100), codec.init_state(100)
    frames = [codec.encode(x, expected), codec.flush(expected)]
    seen = []

    def after(frame, event, function):
        if event == "c_return" and function.__name__ == "encode":
            sys.setprofile(None)
            seen.append(codec.flush(state))
            raise SystemExit

    sys.setprofile(after)
    with pytest.raises(SystemExit) as raised:
        codec.encode(x, state)
    assert [raised.value.frame, *seen] == frames
    np.testing.assert_equal(state.state_dict(), expected.state_dict())


HANDLED = (
    COMMON
    + """
# A handler that encodes, in the middle of an encode: with a state of its own, and with the same.
seen = []
other = gradwire.topk(0.01)
its = other.init_state(N)
codec = codec_of("topk")
state = codec.init_state(N)


def handler(*_):
    seen.append(other.encode(X, its).count)
    try:
        codec.encode(X, state)
        seen.append("encoded")
    except gradwire.StateInUseError:
        seen.append("in use")


signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, duration(codec) / 4)
frame = codec.encode(X, state)
signal.setitimer(signal.ITIMER_REAL, 0)
assert seen[:1] == [N // 100], seen
assert state.step in (1, 2)
print("well")
"""
)


def test_a_handler_may_encode():
    assert run_python(HANDLED).split() == ["well"]


FLUSHED = (
    COMMON
    + """
import os
import threading

codec = codec_of("topk")
state = codec.init_state(N)
codec.encode(X, state)
before = state.state_dict()
begin = time.perf_counter()
codec.flush(state)
seconds = time.perf_counter() - begin
state.load_state_dict(before)
mine = None
try:
    threading.Timer(seconds / 3, os.kill, (os.getpid(), signal.SIGINT)).start()
    mine = codec.flush(state)
    time.sleep(1)
except KeyboardInterrupt as error:
    mine = mine or getattr(error, "frame", None)
if mine is None:
    assert same(state.state_dict(), before)
    mine = codec.flush(state)
assert np.array_equal(mine.values(), before["residual"])
assert not state.residual.any()
print("well")
"""
)


def test_a_flush_is_as_safe():
    assert run_python(FLUSHED).split() == ["well"]
