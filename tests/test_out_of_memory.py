"""Memory that ends in the middle of a call is a `MemoryError`, and the state is as it was.

Each call is made in a process of its own whose address space is limited, under limits from hardly
any to enough: so every large allocation of it fails once.
"""

import resource
import sys

import pytest

from tests.support import run_python

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="limits of the address space are kept by Linux alone"
)

LIMITED = """
import gc
import resource
import sys

import numpy as np

import gradwire

gradwire.set_num_threads(int(sys.argv[2]))
N = 2_000_000
STEP = 1 << 20
UNLIMITED = resource.getrlimit(resource.RLIMIT_AS)
rng = np.random.default_rng(5)
X = rng.standard_normal(N).astype(np.float32)
SMALL = rng.standard_normal(5000).astype(np.float32)


def in_use():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def limited(room, call):
    gc.collect()
    resource.setrlimit(resource.RLIMIT_AS, (in_use() + room, UNLIMITED[1]))
    try:
        return call()
    except MemoryError:
        return MemoryError
    finally:
        resource.setrlimit(resource.RLIMIT_AS, UNLIMITED)


def sweep(call, check, most=200 << 20):
    # None of it may do anything but succeed or raise MemoryError; and both have to be seen.
    failures = 0
    for room in range(STEP, most, STEP):
        result = limited(room, call)
        if result is not MemoryError:
            return failures, result
        failures += 1
        check()
    raise AssertionError("there is no end")


def same(a, b):
    arrays = ("residual", "momentum", "second_moment")
    return all(np.array_equal(a[k], b[k]) for k in arrays) and all(
        a[k] == b[k] for k in ("step", "scalars")
    )


def encodes(codec):
    state, expected = codec.init_state(N), codec.init_state(N)
    for _ in range(2):
        frame = codec.encode(X, expected)
        # Let go of the scratch of the encode before: a thread has its own.
        before = state.state_dict()
        failures, mine = sweep(
            lambda: codec.encode(X, state), lambda: same(state.state_dict(), before) or 1 / 0
        )
        assert mine == frame, codec
        assert same(state.state_dict(), expected.state_dict()), codec
        out = np.zeros(codec.max_encoded_len(N), np.uint8)
    return failures


def main(what):
    codec = gradwire.topk(0.05)
    if what == "encode":  # the core's own tests have every sparsifier and every memory
        encodes(gradwire.sidco(0.05))
        encodes(gradwire.adam(0.05))
    elif what == "states":
        failures, state = sweep(lambda: codec.init_state(N), lambda: None)
        assert failures
        codec.encode(X, state)
        saved = state.state_dict()
        failures, _ = sweep(state.state_dict, lambda: None)
        assert failures
        failures, _ = sweep(
            lambda: state.load_state_dict(saved), lambda: same(state.state_dict(), saved) or 1 / 0
        )
        assert failures
        import copy
        import pickle

        for call in (lambda: copy.copy(state), lambda: pickle.loads(pickle.dumps(state))):
            failures, other = sweep(call, lambda: same(state.state_dict(), saved) or 1 / 0)
            assert failures and same(other.state_dict(), saved)
        failures, _ = sweep(lambda: state.residual, lambda: None)
        assert failures
        failures, _ = sweep(state.reset, lambda: None)
        assert failures == 0 and not state.residual.any() and state.step == 0
        codec.encode(X, state)
        saved = state.state_dict()
        failures, frame = sweep(
            lambda: codec.flush(state), lambda: same(state.state_dict(), saved) or 1 / 0
        )
        assert failures and np.array_equal(frame.values(), saved["residual"])
        failures, _ = sweep(
            lambda: codec.preview(X, state), lambda: None
        )
        assert failures
    elif what == "decode":
        for codec in (
            gradwire.topk(0.3),
            gradwire.randomk(0.3),
            gradwire.Codec(sparsify=gradwire.sparsify.TopK(ratio=0.3), indices="bitmap"),
            gradwire.dense(),
        ):
            memory = gradwire.memory.NoMemory()
            import dataclasses

            codec = dataclasses.replace(codec, memory=memory)
            state = codec.init_state(N)
            frame = codec.encode(X, state)
            data = bytes(frame)
            expected = gradwire.decode(frame)
            failures, out = sweep(lambda: gradwire.decode(frame), lambda: None)
            assert failures and np.array_equal(out, expected)
            out[:] = 0

            def add():
                gradwire.decode_add(data, out, 0.5)

            _, _ = sweep(add, lambda: out.any() and 1 / 0)
            assert np.array_equal(out, 0.5 * expected)
            for call in (
                lambda: gradwire.Frame(data),
                frame.indices,
                frame.values,
                lambda: bytes(frame),
            ):
                failures, _ = sweep(call, lambda: None)
                assert failures
    # All is well afterwards.
    state = gradwire.topk(0.1).init_state(5000)
    assert gradwire.topk(0.1).encode(SMALL, state).count == 500


main(sys.argv[1])
print("all", "well")
"""


@pytest.mark.parametrize(("threads", "backtrace"), [(1, "1"), (2, "0")])
@pytest.mark.parametrize("what", ["encode", "states", "decode"])
def test_no_call_ends_the_process(what, threads, backtrace):
    # Otherwise glibc keeps what was freed, and an allocation that fits into it cannot fail.
    glibc = {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072"}
    printed = run_python(LIMITED, what, str(threads), RUST_BACKTRACE=backtrace, **glibc)
    assert printed.split() == ["all", "well"]


MANY_THREADS = """
import resource

import numpy as np

import gradwire

gradwire.set_num_threads(64)
codec = gradwire.topk(0.01)
x = np.random.default_rng(1).standard_normal(4_000_000).astype(np.float32)
state, other = codec.init_state(x.size), codec.init_state(x.size)
limit = resource.getrlimit(resource.RLIMIT_AS)
with open("/proc/self/statm") as file:
    used = int(file.read().split()[0]) * resource.getpagesize()
# Enough for the encode, and not for the stacks of so many threads.
resource.setrlimit(resource.RLIMIT_AS, (used + (40 << 20), limit[1]))
frame = codec.encode(x, state)
resource.setrlimit(resource.RLIMIT_AS, limit)
assert frame == codec.encode(x, other)
print("same")
"""


def test_threads_that_cannot_be_made_are_done_without():
    assert run_python(MANY_THREADS).split() == ["same"]


def test_limits_can_be_set_here():
    assert resource.getrlimit(resource.RLIMIT_AS)[1] == resource.RLIM_INFINITY
