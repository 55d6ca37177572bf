"""Frames as objects, and decoding them."""

import contextlib
import ctypes
import hashlib
import io
import pickle
import threading
from pathlib import Path

import numpy as np
import pytest

import gradwire
from gradwire.memory import NoMemory
from tests.support import memory_for

CODEC = gradwire.topk(0.01, memory=NoMemory())


@pytest.fixture
def frame(gradient):
    return CODEC.encode(gradient)


class TestObject:
    def test_says_what_it_holds(self, frame, gradient):
        assert (frame.numel, frame.count, frame.dtype) == (gradient.size, 100, "float32")
        assert len(frame) == frame.nbytes == len(bytes(frame))
        assert frame.indices().dtype == np.uint32
        assert frame.values().dtype == np.float32
        assert repr(frame) == f"<gradwire.Frame: 100 of 10000 float32 in {len(frame)} bytes>"

    def test_is_a_read_only_buffer(self, frame):
        view = memoryview(frame)
        assert (view.readonly, view.format, view.ndim, view.nbytes) == (True, "B", 1, len(frame))
        assert view.obj is frame
        with pytest.raises(TypeError):
            view[0] = 0
        with pytest.raises((ValueError, BufferError), match=r"read-only|not writable"):
            np.frombuffer(frame, np.uint8)[0] = 0

    def test_a_view_outlives_the_name(self, gradient):
        frame = CODEC.encode(gradient)
        expected = bytes(frame)
        view = memoryview(frame)
        del frame
        np.ones(10_000_000).sum()
        assert bytes(view) == expected

    def test_whatever_takes_bytes_takes_a_frame(self, frame):
        file = io.BytesIO()
        file.write(frame)
        assert file.getvalue() == bytes(frame) == b"".join([frame])
        assert hashlib.sha256(frame).digest() == hashlib.sha256(bytes(frame)).digest()

    def test_equality_is_that_of_the_bytes(self, frame, gradient):
        again = CODEC.encode(gradient)
        other = CODEC.encode(-gradient)
        assert frame == again
        assert hash(frame) == hash(again)
        assert frame != other
        assert len({frame, again, other}) == 2
        assert frame != bytes(frame)

    def test_pickling_and_rebuilding(self, frame):
        assert pickle.loads(pickle.dumps(frame)) == frame
        for data in (bytes(frame), bytearray(frame), memoryview(frame), np.frombuffer(frame, "u1")):
            rebuilt = gradwire.Frame(data)
            assert rebuilt == frame
            assert (rebuilt.numel, rebuilt.count) == (frame.numel, frame.count)

    def test_the_header_is_a_dict(self):
        codec = gradwire.Codec(
            sparsify=gradwire.sparsify.TopK(k=10),
            quantize=gradwire.quantize.Float16(),
            memory=NoMemory(),
            indices="elias-fano",
        )
        frame = codec.encode(np.arange(1000, dtype=np.float64))
        header = frame.header()
        sections = header["header_nbytes"] + header["index_nbytes"] + header["value_nbytes"]
        assert sections == frame.nbytes
        assert {name: header[name] for name in ("version", "dtype", "sparsifier", "quantizer")} == {
            "version": 1,
            "dtype": "float64",
            "sparsifier": "top-k",
            "quantizer": "float16 (scaled)",
        }
        assert (header["coding"], header["numel"], header["count"]) == ("elias-fano", 1000, 10)

    def test_a_bad_limit_is_named(self, frame):
        with pytest.raises(ValueError, match="max_numel must be at least 0, got -1"):
            gradwire.Frame(frame, max_numel=-1)
        with pytest.raises(TypeError):
            gradwire.Frame(frame, max_numel=0.5)

    def test_a_frame_cannot_be_changed(self, frame):
        with pytest.raises(AttributeError):
            frame.count = 3


class TestDecode:
    def test_into_an_array_of_any_shape(self, frame):
        expected = gradwire.decode(frame)
        for shape in [(10_000,), (100, 100), (10, 50, 20)]:
            out = np.full(shape, np.nan, np.float32)
            assert gradwire.decode(frame, out) is out
            assert np.array_equal(out.ravel(), expected)

    def test_into_an_array_without_dimensions(self):
        frame = gradwire.dense().encode(np.array([3.0], np.float32))
        out = np.zeros((), np.float32)
        assert gradwire.decode(frame, out) is out
        assert out == 3
        gradwire.decode_add(frame, out, 2.0)
        assert out == 9

    def test_a_numpy_scalar_cannot_be_written_to(self):
        frame = gradwire.dense().encode(np.array([3.0], np.float32))
        with pytest.raises((TypeError, ValueError), match="out"):
            gradwire.decode(frame, np.float32(0))

    def test_any_bytes_will_do(self, frame):
        expected = gradwire.decode(frame)
        for data in (bytes(frame), bytearray(frame), memoryview(frame), np.frombuffer(frame, "u1")):
            assert np.array_equal(gradwire.decode(data), expected)
            out = np.zeros_like(expected)
            gradwire.decode_add(data, out)
            assert np.array_equal(out, expected)

    def test_max_numel_is_a_limit(self, frame):
        assert gradwire.decode(frame, max_numel=10_000).size == 10_000
        for source in (frame, bytes(frame)):
            with pytest.raises(gradwire.FrameTooLargeError) as caught:
                gradwire.decode(source, max_numel=9_999)
            assert (caught.value.numel, caught.value.limit) == (10_000, 9_999)

    def test_the_lower_of_two_limits_counts(self, frame):
        with pytest.raises(gradwire.FrameTooLargeError):
            gradwire.decode(frame, np.zeros(10_000, np.float32), max_numel=100)

    @pytest.mark.parametrize(
        ("limit", "error"), [(-1, ValueError), (1.5, TypeError), ("9", TypeError)]
    )
    def test_a_bad_limit_is_named(self, limit, error, frame):
        with pytest.raises(error, match="max_numel must be"):
            gradwire.decode(frame, max_numel=limit)


class TestDecodeAdd:
    def test_scales(self, frame, rng):
        out = rng.standard_normal(10_000).astype(np.float32)
        expected = out + np.float32(0.25) * gradwire.decode(frame)
        assert gradwire.decode_add(frame, out, scale=0.25) is None
        assert np.array_equal(out, expected)

    @pytest.mark.parametrize("scale", [float("nan"), float("inf"), 1e39])
    def test_a_scale_that_is_not_finite_is_named(self, scale, frame):
        out = np.zeros(10_000, np.float32)
        with pytest.raises(ValueError, match="scale must be a finite float32"):
            gradwire.decode_add(frame, out, scale)
        assert not out.any()

    def test_a_scale_is_a_number(self, frame):
        with pytest.raises(TypeError):
            gradwire.decode_add(frame, np.zeros(10_000, np.float32), "half")


def read_only():
    out = np.zeros(10_000, np.float32)
    out.setflags(write=False)
    return out


BAD_OUTS = [
    (np.zeros(10_000), TypeError, "out must be a numpy array of float32, got ndarray of float64"),
    (np.zeros(10_000, np.int32), TypeError, "out must be a numpy array of float32, got"),
    (bytearray(40_000), TypeError, "out must be a numpy array of float32, got bytearray"),
    ([0.0] * 10_000, TypeError, "out must be a numpy array of float32, got list"),
    (read_only(), ValueError, "out is read-only; pass a writable array"),
    (np.zeros(20_000, np.float32)[::2], ValueError, "out must be C-contiguous"),
    (np.zeros(10_001, np.float32), ValueError, "10001"),
    (np.zeros(9_999, np.float32), gradwire.FrameTooLargeError, "10000 elements.*limit of 9999"),
    (
        np.frombuffer(bytearray(40_001), np.uint8)[1:].view(np.float32),
        ValueError,
        "out must be aligned",
    ),
]


@pytest.mark.parametrize(("out", "error", "message"), BAD_OUTS, ids=lambda value: str(value)[:30])
@pytest.mark.parametrize("call", [gradwire.decode, gradwire.decode_add])
def test_a_bad_output_is_named_and_untouched(call, out, error, message, frame):
    with pytest.raises(error, match=message):
        call(frame, out)
    assert not np.asarray(out).any()


@pytest.mark.parametrize("call", [gradwire.decode, gradwire.decode_add])
def test_an_output_that_overlaps_the_frame_is_refused(call, gradient):
    # Where the writes went, the bytes still to be read would change.
    frame = gradwire.dense().encode(gradient)
    memory = np.zeros(len(frame) + 2 * gradient.nbytes, np.uint8)
    memory[: len(frame)] = np.frombuffer(frame, np.uint8)
    before = memory.copy()
    for start in (0, 48, len(frame) // 4 * 4 - 4):
        out = memory[start : start + gradient.nbytes].view(np.float32)
        with pytest.raises(ValueError, match="out shares memory with frame"):
            call(memory[: len(frame)], out)
    assert np.array_equal(memory, before)
    out = memory[len(frame) : len(frame) + gradient.nbytes].view(np.float32)
    call(memory[: len(frame)], out)
    assert np.array_equal(out, gradient)


@pytest.mark.parametrize("data", [3, None, "frame", [1, 2], np.zeros(100, np.float32)])
@pytest.mark.parametrize(
    "call",
    [gradwire.Frame, gradwire.decode, lambda data: gradwire.decode_add(data, np.zeros(9, "f4"))],
)
def test_what_is_not_bytes_is_named(call, data):
    with pytest.raises(TypeError, match="must be a bytes-like object"):
        call(data)


def test_bytes_that_are_not_contiguous_are_refused(frame):
    spread = np.repeat(np.frombuffer(frame, np.uint8), 2)[::2]
    with pytest.raises(ValueError, match="frame must be C-contiguous"):
        gradwire.decode(spread)


def test_type_checkers_let_a_frame_be_written(tmp_path: Path) -> None:
    # Typed, so that mypy holds it for Python 3.11 too, whose types know no buffers by themselves.
    frame = CODEC.encode(np.ones(100, dtype=np.float32))
    with (tmp_path / "frame").open("wb") as file:
        file.write(frame)
    view: memoryview = memoryview(frame)
    assert (tmp_path / "frame").read_bytes() == bytes(view)


def test_a_frame_is_what_was_checked_while_another_thread_writes(gradient):
    # Checked and then copied, bytes written in between would be taken for a frame.
    frame = bytes(gradwire.dense().encode(np.tile(gradient, 20)))
    data, stop = bytearray(frame), threading.Event()

    def scribble():
        while not stop.is_set():
            data[100] ^= 0xFF

    writer = threading.Thread(target=scribble)
    writer.start()
    try:
        for _ in range(300):
            with contextlib.suppress(gradwire.CorruptFrameError):
                taken = gradwire.Frame(data)
                assert bytes(taken) == frame
    finally:
        stop.set()
        writer.join()


def test_the_checksum_of_a_frame_is_computed_once(frame):
    checked = gradwire.Frame(bytes(frame))
    header, indices, values = checked.header(), checked.indices(), checked.values()
    whole = gradwire.decode(checked)
    # Nothing can write to a frame. This does, and only a checksum would notice.
    ctypes.memset(
        np.frombuffer(checked, np.uint8).ctypes.data + 12, (header["checksum"] + 1) % 256, 1
    )
    assert checked.header()["checksum"] != header["checksum"]
    np.testing.assert_array_equal(checked.indices(), indices)
    np.testing.assert_array_equal(checked.values(), values)
    np.testing.assert_array_equal(gradwire.decode(checked), whole)
    total = np.zeros_like(whole)
    gradwire.decode_add(checked, total)
    np.testing.assert_array_equal(total, whole)
    with pytest.raises(gradwire.errors.CorruptFrameError, match="checksum"):
        gradwire.decode(bytes(checked))


@pytest.mark.parametrize("quantize", [each() for each in gradwire.quantize.QUANTIZERS], ids=repr)
def test_parts_of_a_frame_are_the_frame(quantize):
    x = np.random.default_rng(3).standard_normal((40, 60)).astype(np.float32)
    codec = gradwire.Codec(
        sparsify=gradwire.sparsify.TopK(ratio=0.3), quantize=quantize, memory=memory_for(quantize)
    ).for_shape(x.shape)
    frame = codec.encode(x, codec.init_state(x.size))
    bounds = [0, 700, 700, 1501, x.size]
    ranges = frame.split(bounds)
    assert [sum(part.numel for part in parts) for parts in ranges] == np.diff(bounds).tolist()
    parts = [part for parts in ranges for part in parts]
    assert sum(part.count for part in parts) == frame.count
    assert {part.header()["quantizer"] for part in parts} == {frame.header()["quantizer"]}
    decoded = np.concatenate([gradwire.decode(part) for part in parts])
    np.testing.assert_array_equal(decoded, gradwire.decode(frame))
    assert frame.split([0, x.size])[0][0].numel == x.size


def test_bounds_of_parts_are_checked():
    codec = gradwire.topk(ratio=0.1)
    frame = codec.encode(np.ones(100, np.float32), codec.init_state(100))
    for bad in ([], [0], [0, 99], [1, 100], [0, 60, 50, 100], [0, 101]):
        with pytest.raises(ValueError, match="bounds must ascend from 0 to 100"):
            frame.split(bad)
