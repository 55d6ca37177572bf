"""States: what they remember, undoing, saving, copying, sharing."""

import copy
import gc
import json
import threading
import time
import weakref

import numpy as np
import pytest

import gradwire
from gradwire.memory import NoMemory, Residual
from tests.support import same_state

N = 5000


def inputs(rng, count):
    return [(rng.standard_t(3, N) * 10.0**i).astype(np.float32) for i in range(count)]


def test_a_new_state_is_empty():
    state = gradwire.topk(0.1).init_state(N, name="w")
    assert (state.numel, state.name, state.step, state.last) == (N, "w", 0, None)
    assert not state.residual.any()
    assert gradwire.topk(0.1, memory=NoMemory()).init_state(N).residual is None
    assert repr(state) == "<gradwire.State of 'w': 5000 elements, step 0>"


def test_the_residual_is_a_copy(rng):
    codec = gradwire.topk(0.1)
    state = codec.init_state(N)
    codec.encode(inputs(rng, 1)[0], state)
    state.residual[:] = np.nan
    assert np.isfinite(state.residual).all()


def test_last_says_what_the_last_encode_came_to(rng):
    codec = gradwire.topk(0.01)
    state = codec.init_state(N)
    x = inputs(rng, 1)[0]
    frame = codec.encode(x, state)
    threshold = state.last.pop("threshold")
    assert state.last | {"threshold": threshold} == {
        "count": frame.count,
        "target": 50,
        "threshold": threshold,
        "trimmed": 0,
    }
    assert 0 <= threshold <= np.abs(frame.values()).min()
    state.rollback()
    assert state.last is None


def test_there_is_one_encode_to_roll_back(rng):
    codec = gradwire.topk(0.1)
    state = codec.init_state(N)
    with pytest.raises(ValueError, match="no encode to roll back"):
        state.rollback()
    codec.encode(inputs(rng, 1)[0], state)
    state.rollback()
    with pytest.raises(ValueError, match="no encode to roll back"):
        state.rollback()
    assert state.step == 0


def test_a_state_knows_the_bytes_that_it_keeps(rng):
    expected = {
        gradwire.memory.NoMemory(): 0,
        Residual(): 8,
        Residual(low_memory=True): 4,
        gradwire.memory.LowPass(): 8,
        gradwire.memory.MomentumCorrection(): 16,
        gradwire.memory.AdamCorrection(): 16,
        gradwire.memory.AdamCorrection(low_memory=True): 8,
    }
    for memory, each in expected.items():
        codec = gradwire.topk(0.1, memory=memory)
        state = codec.init_state(N)
        assert state.nbytes == each * N
        codec.encode(inputs(rng, 1)[0], state)
        assert state.nbytes == each * N


def test_a_state_dict_is_plain(rng):
    codec = gradwire.sidco(0.01)
    state = codec.init_state(N)
    for x in inputs(rng, 3):
        codec.encode(x, state)
    saved = state.state_dict()
    arrays = {"residual", "momentum", "second_moment"}
    assert saved.keys() == {"version", "numel", "step", "config", "scalars", *arrays}
    assert (saved["version"], saved["numel"], saved["step"]) == (1, N, 3)
    assert (saved["residual"].dtype, saved["residual"].shape) == (np.float32, (N,))
    rest = {key: value for key, value in saved.items() if key != "residual"}
    assert json.loads(json.dumps(rest)) == rest


def test_a_schedule_is_resumed_where_it_was(rng):
    """The dict knows the ratio of the last encode, not that of the codec that made the state."""
    first, second = gradwire.sidco(0.1), gradwire.sidco(0.01)
    state = first.init_state(N)
    steps = inputs(rng, 8)
    for codec, x in zip([first, second, second, second], steps, strict=False):
        codec.encode(x, state)
    assert state.codec == second
    restored = first.init_state(N)
    restored.load_state_dict(state.state_dict())
    for x in steps[4:]:
        assert second.encode(x, restored) == second.encode(x, state)
    assert same_state(restored.state_dict(), state.state_dict())


def use(codec, call, x, state):
    """Encode in one of the ways that there are."""
    if call == "encode_into":
        return codec.encode_into(x, state, bytearray(codec.max_encoded_len(N)))
    if call == "encode_at":
        return codec.encode_at(x, state, np.array([1, 5], np.uint32))
    return codec.flush(state) if call == "flush" else codec.encode(x, state)


@pytest.mark.parametrize("call", ["encode", "encode_into", "encode_at", "flush"])
def test_a_rollback_brings_back_the_ratio_too(call, rng):
    codec, other = gradwire.sidco(0.01), gradwire.sidco(0.1)
    state = codec.init_state(N)
    *steps, x, y = inputs(rng, 8)
    for each in steps:
        codec.encode(each, state)
    before, expected = state.state_dict(), codec.encode(y, copy.copy(state))
    use(other, call, x, state)
    assert state.codec is other
    state.rollback()
    assert state.codec is codec
    assert same_state(state.state_dict(), before)
    assert codec.encode(y, state) == expected


@pytest.mark.full
def test_a_state_keeps_its_codec_and_neither_is_kept_by_the_other_for_ever(rng):
    codec = gradwire.topk(0.1)
    state, seen = codec.init_state(N), weakref.ref(codec)
    del codec
    gc.collect()
    state.codec.encode(inputs(rng, 1)[0], state)
    assert state.codec is seen()
    del state
    gc.collect()
    assert seen() is None


BAD_DICTS = [
    ({"version": 2}, ValueError, "version 2, expected 1"),
    (
        {"numel": N + 1},
        ValueError,
        f"for a tensor of {N + 1} elements, but this state is for one of {N}",
    ),
    ({"step": -1}, ValueError, "step must be at least 0"),
    ({"step": 1.5}, TypeError, "step must be an integer"),
    ({"residual": None}, ValueError, "residual must be an array"),
    (
        {"residual": np.zeros(N)},
        TypeError,
        "residual must be float32, or uint16 with the bits of bfloat16, got float64",
    ),
    ({"residual": np.zeros(N - 1, np.float32)}, ValueError, str(N - 1)),
    ({"residual": np.full(N, np.nan, np.float32)}, ValueError, "non-finite"),
    ({"residual": "zeros"}, TypeError, "residual must be float32"),
    ({"scalars": {"bound": "x"}}, TypeError, "must be real number"),
    ({"scalars": {"bound": -1.0}}, ValueError, "bound"),
    ({"scalars": {"unheard_of": 1.0}}, ValueError, "unheard_of"),
    ({"scalars": []}, TypeError, "scalars must be a dict"),
    (
        {"config": gradwire.topk(0.1).get_config()},
        ValueError,
        "threshold and the quantizer may",
    ),
    ({"config": {}}, ValueError, "exactly the keys"),
    ({"config": 3}, TypeError, "config must be a dict"),
    ({"extra": 3}, ValueError, "exactly the keys"),
]


@pytest.mark.parametrize(
    ("change", "error", "message"), BAD_DICTS, ids=lambda value: str(value)[:40]
)
def test_a_bad_state_dict_is_refused_and_nothing_changes(change, error, message, rng):
    codec = gradwire.sidco(0.1)
    state = codec.init_state(N)
    for x in inputs(rng, 2):
        codec.encode(x, state)
    good = state.state_dict()
    changed = good | change
    if isinstance(change.get("scalars"), dict):
        changed["scalars"] = good["scalars"] | change["scalars"]
    with pytest.raises(error, match=message):
        state.load_state_dict(changed)
    assert same_state(state.state_dict(), good)
    # Not even the way back is lost.
    state.rollback()
    assert state.step == 1


def test_a_state_dict_that_lacks_something_is_refused(rng):
    state = gradwire.sidco(0.1).init_state(N)
    saved = state.state_dict()
    for key in saved:
        part = {name: value for name, value in saved.items() if name != key}
        with pytest.raises(ValueError, match="exactly the keys"):
            state.load_state_dict(part)
    with pytest.raises(ValueError, match=r"exactly the keys .*, got nothing$"):
        state.load_state_dict({})
    with pytest.raises(TypeError, match=r"must be a dict, got \[\] \(list\)"):
        state.load_state_dict([])
    lacking = saved["scalars"].copy()
    if lacking:
        lacking.popitem()
        with pytest.raises(ValueError):  # noqa: PT011 - the words are the controller's
            state.load_state_dict(saved | {"scalars": lacking})


def test_a_residual_without_a_memory_is_refused():
    codec = gradwire.topk(0.1, memory=NoMemory())
    state = codec.init_state(N)
    saved = state.state_dict()
    with pytest.raises(ValueError, match="residual must be None"):
        state.load_state_dict(saved | {"residual": np.zeros(N, np.float32)})


def test_without_a_memory_there_is_nothing_to_flush():
    codec = gradwire.dense()
    with pytest.raises(ValueError, match="no memory"):
        codec.flush(codec.init_state(5))


def test_a_flush_takes_a_state_of_its_codec():
    with pytest.raises(ValueError, match="belongs to another codec"):
        gradwire.topk(0.1).flush(gradwire.sidco(0.1).init_state(5))
    with pytest.raises(TypeError, match="state must be"):
        gradwire.topk(0.1).flush(None)


class TestThreads:
    def test_one_state_in_two_threads_is_an_error_and_never_a_deadlock(self):
        n = 4_000_000
        x = np.linspace(-1, 1, n, dtype=np.float32)
        codec = gradwire.topk(0.1)
        state = codec.init_state(n, name="shared")
        start, failures, done = threading.Barrier(4), [], []

        def work():
            start.wait()
            for _ in range(5):
                try:
                    codec.encode(x, state)
                    done.append(1)
                except gradwire.StateInUseError as error:
                    failures.append(str(error))

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads)
        # What succeeded happened one after the other; what collided did nothing.
        assert state.step == len(done)
        assert len(done) + len(failures) == 20
        assert failures
        assert all("the state of 'shared' is in use by another thread" in text for text in failures)

    def test_other_threads_run_during_an_encode(self):
        n = 8_000_000
        codec = gradwire.topk(0.3)
        state = codec.init_state(n)
        x = np.linspace(-1, 1, n, dtype=np.float32)

        def seen_in_the_middle():
            """How often this thread ran in the middle half of an encode in another thread."""
            span = []

            def work():
                span.append(time.perf_counter())
                codec.encode(x, state)
                span.append(time.perf_counter())

            thread = threading.Thread(target=work)
            thread.start()
            times = []
            while thread.is_alive():
                times.append(time.perf_counter())
            quarter = (span[1] - span[0]) / 4
            return sum(span[0] + quarter < at < span[1] - quarter for at in times)

        # With the interpreter's lock held it would be never; a busy machine may need a few tries.
        assert any(seen_in_the_middle() for _ in range(50))

    def test_a_state_each_gives_what_one_thread_gives(self, rng):
        codec = gradwire.sidco(0.01)
        steps = [rng.standard_t(3, 200_000).astype(np.float32) for _ in range(4)]

        def run():
            state = codec.init_state(steps[0].size)
            return [bytes(codec.encode(x, state)) for x in steps]

        expected, results = run(), []
        threads = [threading.Thread(target=lambda: results.append(run())) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert results == [expected] * 6
