"""Codecs: composition, configuration, and what encoding gives."""

import ml_dtypes
import numpy as np
import pytest

import gradwire
from gradwire.memory import NoMemory, Residual
from gradwire.quantize import BFloat16
from gradwire.sparsify import All, TopK
from tests.support import CODINGS, name_of


def test_the_length_promised_is_reached():
    for quantize in (gradwire.quantize.Float32(), BFloat16()):
        codec = gradwire.dense(quantize=quantize)
        frame = codec.encode(np.ones(1000, np.float32))
        assert frame.nbytes == codec.max_encoded_len(1000)


@pytest.mark.parametrize("coding", CODINGS[1:])
def test_positions_are_coded_as_asked(coding, gradient):
    codec = gradwire.Codec(sparsify=TopK(ratio=0.1), memory=NoMemory(), indices=coding)
    auto = gradwire.Codec(sparsify=TopK(ratio=0.1), memory=NoMemory())
    frame = codec.encode(gradient)
    assert frame.header()["coding"] == coding
    assert np.array_equal(frame.indices(), auto.encode(gradient).indices())
    assert auto.encode(gradient).nbytes <= frame.nbytes


@pytest.mark.parametrize(
    "dtype", [np.float64, np.float16, ml_dtypes.bfloat16], ids=["float64", "float16", "bfloat16"]
)
@pytest.mark.parametrize(
    "codec", [gradwire.topk(0.05), gradwire.sidco(0.05), gradwire.dense()], ids=name_of
)
def test_other_dtypes_are_read_as_float32(codec, dtype, gradient):
    narrow = gradient.astype(dtype)
    wide = narrow.astype(np.float32)
    state, expected_state = codec.init_state(narrow.size), codec.init_state(narrow.size)
    frame, expected = codec.encode(narrow, state), codec.encode(wide, expected_state)
    assert frame.dtype == np.dtype(dtype).name
    assert np.array_equal(frame.indices(), expected.indices())
    assert np.array_equal(frame.values(), expected.values())
    if state.residual is not None:
        assert np.array_equal(state.residual, expected_state.residual)


def test_a_float64_beyond_float32_is_not_finite():
    with pytest.raises(gradwire.NonFiniteError) as caught:
        gradwire.dense().encode(np.array([1.0, 1e39]))
    assert (caught.value.count, caught.value.first) == (1, 1)


def test_shape_does_not_matter_and_the_input_is_not_written_to(gradient):
    codec = gradwire.topk(0.01)
    gradient.setflags(write=False)
    flat = codec.encode(gradient, codec.init_state(gradient.size))
    shaped = codec.encode(gradient.reshape(10, 50, 20), codec.init_state(gradient.size))
    scalar = codec.encode(gradient[:1].reshape(()), codec.init_state(1))
    assert flat == shaped
    assert scalar.numel == 1


class TestMaxNbytes:
    @pytest.mark.parametrize(
        ("limit", "error"), [(-1, ValueError), (1.5, TypeError), (True, TypeError)]
    )
    def test_a_limit_that_is_no_size_is_named(self, limit, error, gradient):
        codec = gradwire.topk(0.1)
        with pytest.raises(error, match="max_nbytes must be"):
            codec.encode(gradient, codec.init_state(gradient.size), max_nbytes=limit)


class TestEncodeInto:
    def test_writes_the_same_bytes(self, gradient):
        codec = gradwire.sidco(0.01)
        frame = codec.encode(gradient, codec.init_state(gradient.size))
        for make in (lambda n: np.full(n, 7, np.uint8), lambda n: bytearray(b"\x07" * n)):
            out = make(frame.nbytes + 9)
            written = codec.encode_into(gradient, codec.init_state(gradient.size), out)
            assert written == frame.nbytes
            assert bytes(out) == bytes(frame) + b"\x07" * 9

    def test_trims_to_the_buffer(self, gradient):
        codec = gradwire.topk(0.1)
        state = codec.init_state(gradient.size)
        out = np.empty(500, np.uint8)
        written = codec.encode_into(gradient, state, out)
        assert written <= 500
        assert state.last["trimmed"] > 0
        sent = gradwire.decode(out[:written])
        assert np.array_equal(sent + state.residual, gradient)

    @pytest.mark.parametrize(
        ("out", "error", "message"),
        [
            (b"\0" * 9999, ValueError, "out is read-only"),
            (np.zeros(9999, np.float32), TypeError, "out must be a numpy array of uint8"),
            (np.zeros(9999, np.uint8)[::2], ValueError, "out must be C-contiguous"),
            ([0] * 99, TypeError, "out must be a numpy array of uint8, got list"),
        ],
    )
    def test_a_bad_buffer_is_named_and_nothing_is_encoded(self, out, error, message, gradient):
        codec = gradwire.topk(0.1)
        state = codec.init_state(gradient.size)
        with pytest.raises(error, match=message):
            codec.encode_into(gradient, state, out)
        assert state.step == 0

    def test_a_failed_encode_leaves_the_buffer_alone(self, gradient):
        codec = gradwire.topk(0.1)
        out = np.full(5000, 7, np.uint8)
        gradient[5] = np.nan
        with pytest.raises(gradwire.NonFiniteError):
            codec.encode_into(gradient, codec.init_state(gradient.size), out)
        assert (out == 7).all()


class TestComposition:
    def test_parts_are_checked(self):
        with pytest.raises(TypeError, match=r"sparsify must be one of gradwire\.sparsify\."):
            gradwire.Codec(sparsify=Residual())
        with pytest.raises(TypeError, match="got TopK; call the class"):
            gradwire.Codec(sparsify=TopK)
        with pytest.raises(TypeError, match="quantize must be one of"):
            gradwire.Codec(sparsify=All(), quantize="bfloat16")
        with pytest.raises(TypeError, match="memory must be one of"):
            gradwire.Codec(sparsify=All(), memory=None)
        with pytest.raises(ValueError, match="indices must be one of auto, bitmap"):
            gradwire.Codec(sparsify=All(), indices="huffman")

    def test_codecs_are_frozen(self):
        with pytest.raises(AttributeError):
            gradwire.topk(0.1).memory = NoMemory()

    @pytest.mark.parametrize(
        ("change", "error", "message"),
        [
            ({"memory": None}, TypeError, "memory must be a dict"),
            ({"memory": {"kind": "elephant"}}, ValueError, "memory has kind 'elephant'"),
            ({"sparsify": {"kind": "topk"}}, TypeError, "either ratio= or k="),
            ({"extra": 1}, ValueError, "exactly the keys"),
        ],
    )
    def test_bad_configurations_are_refused(self, change, error, message):
        with pytest.raises(error, match=message):
            gradwire.Codec.from_config(gradwire.topk(0.1).get_config() | change)

    def test_a_configuration_that_lacks_something_is_refused(self):
        with pytest.raises(ValueError, match=r"exactly the keys .*, got nothing$"):
            gradwire.Codec.from_config({})
        with pytest.raises(ValueError, match=r"no exchange, .*memory, quantize, also density$"):
            gradwire.Codec.from_config({"sparsify": TopK(k=1).get_config(), "density": 0.1})

    def test_parts_are_replaced(self):
        codec = gradwire.topk(0.1)
        assert codec.replace() == codec
        assert codec.replace(quantize=BFloat16(), indices="rice") == gradwire.topk(
            0.1, quantize=BFloat16(), indices="rice"
        )
        with pytest.raises(TypeError, match="unexpected keyword argument 'ratio'"):
            codec.replace(ratio=0.5)
        with pytest.raises(ValueError, match=r"exchange=gradwire\.exchange\.AllGather"):
            codec.replace(exchange=gradwire.exchange.AllReduce())
        with pytest.warns(UserWarning, match="sends little more than signs") as seen:
            gradwire.signsgd().replace(memory=NoMemory())
        assert seen[0].filename == __file__

    def test_an_array_may_stand_for_its_size(self):
        codec, x = gradwire.topk(0.1), np.zeros((3, 5), np.float32)
        assert codec.init_state(x).numel == 15
        with pytest.raises(TypeError, match=r"must be an integer, got \[0, 0, .*\] \(list\)$"):
            codec.init_state([0] * 10_000)

    def test_a_configuration_is_a_dict(self):
        with pytest.raises(TypeError, match="config must be a dict"):
            gradwire.Codec.from_config("topk")

    @pytest.mark.parametrize(
        ("numel", "error"),
        [(-1, ValueError), (2**32, ValueError), (1.0, TypeError), (True, TypeError)],
    )
    def test_bad_lengths_are_named(self, numel, error):
        with pytest.raises(error, match="numel must be"):
            gradwire.topk(0.1).init_state(numel)
        with pytest.raises(error, match="numel must be"):
            gradwire.topk(0.1).max_encoded_len(numel)


@pytest.mark.parametrize("count", [0, -1])
def test_a_bad_number_of_threads_is_named(count):
    with pytest.raises(ValueError, match="count must be from 1 to 4096"):
        gradwire.set_num_threads(count)
