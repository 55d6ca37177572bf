"""What cannot be encoded: each mistake is named, and the state is as it was."""

import contextlib

import numpy as np
import pytest

import gradwire
from gradwire.memory import NoMemory
from tests.support import name_of, same_state

N = 1000


@contextlib.contextmanager
def unchanged(state):
    before = state.state_dict()
    yield
    assert same_state(state.state_dict(), before)


@pytest.fixture
def used(rng):
    """A codec and a state that has seen two tensors, so that there is something to lose."""
    codec = gradwire.sidco(0.05)
    state = codec.init_state(N, name="layer.weight")
    for _ in range(2):
        codec.encode(rng.standard_normal(N), state)
    return codec, state


class Unhelpful:
    """No buffer, and attributes that raise."""

    @property
    def dtype(self):
        raise RuntimeError("no dtype today")


BAD_TYPES = [
    ([1.0] * N, "got list"),
    (1.0, "got float"),
    (None, "got NoneType"),
    (b"\0" * 4 * N, "got bytes"),
    (Unhelpful(), "got Unhelpful"),
    (np.zeros(N, np.int64), "got ndarray of int64"),
    (np.zeros(N, np.complex64), "got ndarray of complex64"),
    (np.zeros(N, np.uint16), "got ndarray of uint16"),
    (np.zeros(N, bool), "got ndarray of bool"),
    (np.zeros(N, object), "got ndarray of object"),
    (np.zeros(N, ">f4"), "got ndarray of >f4"),
    (np.zeros(N, "datetime64[s]"), "got ndarray of datetime64"),
    (np.zeros(N, [("a", "f4")]), "got ndarray of"),
]


@pytest.mark.parametrize(("x", "message"), BAD_TYPES, ids=[message for _, message in BAD_TYPES])
def test_a_wrong_type_is_named(x, message, used):
    codec, state = used
    expected = f"x must be a numpy array of float32, float64 or float16, {message}"
    with unchanged(state), pytest.raises(TypeError) as caught:
        codec.encode(x, state)
    assert str(caught.value).startswith(expected)


def test_arrays_that_are_not_contiguous_are_refused_with_what_to_do(used):
    codec, state = used
    for x in (np.zeros((N, 2), np.float32)[:, 0], np.asfortranarray(np.zeros((10, 100), "f4"))):
        with unchanged(state), pytest.raises(ValueError, match="x must be C-contiguous") as caught:
            codec.encode(x, state)
        assert "numpy.ascontiguousarray(x)" in str(caught.value)
        codec.encode(np.ascontiguousarray(x), codec.init_state(N))


def test_arrays_that_are_not_aligned_are_refused(used):
    codec, state = used
    x = np.frombuffer(bytearray(4 * N + 1), np.uint8)[1:].view(np.float32)
    with unchanged(state), pytest.raises(ValueError, match="x must be aligned"):
        codec.encode(x, state)


@pytest.mark.parametrize("n", [0, N - 1, N + 1])
def test_another_length_names_both_and_the_tensor(n, used):
    codec, state = used
    message = f"x has {n} elements, but the state of 'layer.weight' has {N}"
    with unchanged(state), pytest.raises(ValueError, match=message):
        codec.encode(np.zeros(n, np.float32), state)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_non_finite_values_are_found_in_every_dtype(dtype):
    x = np.ones(N, dtype)
    x[-1] = np.nan
    with pytest.raises(gradwire.NonFiniteError) as caught:
        gradwire.topk(0.1, memory=NoMemory()).encode(x)
    assert (caught.value.count, caught.value.first, caught.value.name) == (1, N - 1, None)


class TestStateArgument:
    def test_a_memory_needs_a_state(self):
        with pytest.raises(ValueError, match=r"state is missing.*codec\.init_state\(x\.size\)"):
            gradwire.topk(0.1).encode(np.zeros(N, np.float32))

    def test_without_a_memory_it_may_be_left_out(self, rng):
        x = rng.standard_normal(N)
        for codec in (gradwire.topk(0.1, memory=NoMemory()), gradwire.dense()):
            assert codec.encode(x) == codec.encode(x, codec.init_state(N))

    @pytest.mark.parametrize("state", [3, {}, "state"])
    def test_a_state_is_a_state(self, state):
        with pytest.raises(
            TypeError, match=r"state must be a gradwire\.State from codec\.init_state"
        ):
            gradwire.topk(0.1).encode(np.zeros(N, np.float32), state)

    @pytest.mark.parametrize(
        "other",
        [
            gradwire.topk(0.1, memory=NoMemory()),
            gradwire.topk(0.1, memory=gradwire.memory.Residual(decay=0.5)),
            gradwire.topk(0.1, quantize=gradwire.quantize.BFloat16()),
            gradwire.sidco(0.1),
            gradwire.dense(),
        ],
        ids=name_of,
    )
    def test_a_state_of_another_codec_is_refused(self, other):
        codec, state = gradwire.topk(0.1), other.init_state(N)
        with unchanged(state), pytest.raises(ValueError, match="another codec") as caught:
            codec.encode(np.zeros(N, np.float32), state)
        assert f"the state belongs to another codec, {other!r}" in str(caught.value)

    def test_a_state_of_an_equal_codec_is_taken(self):
        state = gradwire.topk(0.1).init_state(N)
        gradwire.topk(0.1).encode(np.zeros(N, np.float32), state)
        assert state.step == 1

    @pytest.mark.parametrize(
        ("first", "second"),
        [
            (gradwire.topk(0.1), gradwire.topk(0.01)),
            (gradwire.topk(0.1), gradwire.topk(k=10)),
            (gradwire.sidco(0.1), gradwire.sidco(0.01)),
            (gradwire.threshold(0.1), gradwire.threshold(2.0)),
        ],
    )
    def test_how_much_is_sent_may_change(self, first, second, rng):
        x = rng.standard_normal(N).astype(np.float32)
        state = first.init_state(N)
        sent = gradwire.decode(first.encode(x, state))
        rest = state.residual
        frame = second.encode(x, state)
        assert np.array_equal(gradwire.decode(frame) + state.residual, x + rest)
        assert np.array_equal(sent + rest, x)
        assert frame.count < np.count_nonzero(sent)


@pytest.mark.parametrize("codec", [gradwire.topk(0.1), gradwire.dense()], ids=name_of)
def test_an_output_that_overlaps_the_tensor_is_refused(codec, rng):
    memory = rng.standard_normal(3 * N).astype(np.float32)
    x = memory[N : 2 * N]
    everything = memory.view(np.uint8)
    before, state = memory.copy(), codec.init_state(N)
    size = x.nbytes
    for start in (size, 0, size - 1, 2 * size - 1):
        out = everything[start : start + size + 64]
        with unchanged(state), pytest.raises(ValueError, match="out shares memory with x"):
            codec.encode_into(x, state, out)
        assert np.array_equal(memory, before)
    out = everything[:size]  # ends where x begins
    if codec != gradwire.dense():
        codec.encode_into(x, state, out)
    assert np.array_equal(memory[N:], before[N:])


def test_a_limit_that_is_too_small_is_named_by_the_argument_it_came_from(rng):
    codec, x = gradwire.topk(0.1), rng.standard_normal(N)
    state = codec.init_state(N)
    dense = gradwire.dense()
    out = np.zeros(30, np.uint8)
    with unchanged(state):
        with pytest.raises(ValueError, match=r"^max_nbytes is 40 bytes, but .* has 48$"):
            codec.encode(x, state, max_nbytes=40)
        with pytest.raises(ValueError, match=r"^out is 30 bytes, but the smallest possible frame"):
            codec.encode_into(x, state, out)
        with pytest.raises(ValueError, match=r"^max_nbytes is 20 bytes"):
            codec.encode_into(x, state, out, max_nbytes=20)
    with pytest.raises(ValueError, match=r"^max_nbytes is 60 bytes, but the smallest"):
        dense.encode(x, max_nbytes=60)
