"""Quantizers of other packages, also when they go wrong; tests/test_laws.py composes them."""

import dataclasses
import re
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

import gradwire
from gradwire import extension
from gradwire.cli import main
from gradwire.memory import NoMemory, Residual
from gradwire.sparsify import All, TopK
from tests.deadlines import stretched
from tests.outside_parts import Dithered, Halves, Nested
from tests.support import FILTERS, MEMORIES, forge, name_of, run_python, same_state

N = 5000


@pytest.fixture
def tensors() -> list[np.ndarray]:
    rng = np.random.default_rng(7)
    return [rng.standard_t(3, N).astype(np.float32) for _ in range(4)]


@pytest.mark.parametrize("numel", [0, 1, 2, 9])
def test_degenerate_tensors(numel):
    for value in (0.0, 1.0):
        x = np.full(numel, value, np.float32)
        for sparsify in (All(), TopK(k=1), TopK(ratio=1.0)):
            codec = gradwire.Codec(sparsify=sparsify, quantize=Halves())
            frame = codec.encode(x, codec.init_state(numel))
            assert np.array_equal(gradwire.decode(frame)[frame.indices()], x[frame.indices()])


def test_random_numbers_differ_between_ranks_and_steps_and_names(tensors):
    codec = gradwire.dense(quantize=Dithered())
    frames = set()
    for name, stream in [("a", 0), ("a", 1), ("b", 0)]:
        state = codec.init_state(N, name=name, stream=stream)
        frames |= {bytes(codec.encode(tensors[0], state)) for _ in range(2)}
        again = codec.init_state(N, name=name, stream=stream)
        assert bytes(codec.encode(tensors[0], again)) in frames
    assert len(frames) == 6


def test_a_state_belongs_to_the_options_it_was_made_with(tensors):
    first, second = (gradwire.dense(quantize=Dithered(seed)) for seed in (0, 1))
    state = first.init_state(N)
    with pytest.raises(ValueError, match="the state belongs to another codec"):
        second.encode(tensors[0], state)
    other = gradwire.dense(quantize=Dithered(0), memory=Residual())
    with pytest.raises(ValueError, match="only ratio, k, threshold and the quantizer may differ"):
        state.load_state_dict(other.init_state(N).state_dict())
    assert first._codec.same_kind(gradwire.dense(quantize=Dithered(0))._codec)
    assert not first._codec.same_kind(gradwire.dense()._codec)


def test_a_part_may_use_this_package_itself(tensors):
    plain = gradwire.float8(memory=Residual())
    nested = gradwire.dense(quantize=Nested(), memory=Residual())
    states = plain.init_state(N), nested.init_state(N)
    for x in tensors:
        ours = gradwire.decode(plain.encode(x, states[0]))
        assert np.array_equal(gradwire.decode(nested.encode(x, states[1])), ours)
        assert np.array_equal(states[0].residual, states[1].residual)


def test_an_interrupted_part_leaves_no_trace():
    codec = gradwire.Codec(sparsify=TopK(k=5), quantize=Wrong("interrupted"))
    state, x = codec.init_state(10), np.arange(10, dtype=np.float32)
    before = state.state_dict()
    with pytest.raises(KeyboardInterrupt):
        codec.encode(x, state)
    assert same_state(state.state_dict(), before)


def test_values_are_not_summed_on_the_wire():
    with pytest.raises(ValueError, match="codes of Halves cannot be summed"):
        gradwire.dense(quantize=Halves(), exchange=gradwire.exchange.AllReduce())


def test_the_header_names_the_kind(tensors):
    codec = gradwire.Codec(sparsify=TopK(k=9), quantize=Halves())
    header = codec.encode(tensors[0], codec.init_state(N)).header()
    assert header["quantizer"] == "custom:test_halves"


class TestWithoutThePackage:
    """In a process that does not know the parts."""

    def frame(self, quantize: extension.Quantizer) -> bytes:
        codec = gradwire.Codec(sparsify=TopK(k=30), memory=NoMemory(), quantize=quantize)
        return bytes(codec.encode(np.arange(N, dtype=np.float32)))

    def test_a_frame_names_what_is_missing(self, tmp_path):
        path = tmp_path / "frame.gwf"
        path.write_bytes(self.frame(Halves()))
        printed = run_python(
            """
            import sys
            import numpy as np
            import gradwire
            from gradwire.cli import main

            data = open(sys.argv[1], "rb").read()
            out = np.full(5000, 7, np.float32)
            frame = gradwire.Frame(data)
            for call in (
                lambda: gradwire.decode(data),
                lambda: gradwire.decode(frame, out),
                lambda: gradwire.decode_add(data, out),
                frame.values,
            ):
                try:
                    call()
                except gradwire.UnsupportedFrameError as error:
                    print(error.what, error.found, error, sep="; ")
            assert (out == 7).all()
            print(main(["inspect", sys.argv[1]]))
            """,
            str(path),
        )
        *told, code = printed.splitlines()
        assert len(told) == 4
        message = (
            "quantizer; test_halves; unsupported frame: its quantizer 'test_halves' is from "
            "another package; install or import the one that the sender uses"
        )
        assert set(told) == {message}
        assert code == "1"

    def test_inspect_shows_a_section_of_any_length(self, tmp_path, capsys):
        frame = self.frame(Repeated(1000))
        path = tmp_path / "frame.gwf"
        path.write_bytes(frame)
        assert main(["inspect", str(path)]) == 0
        assert f"{len(frame):,} bytes" in capsys.readouterr().out

    def test_inspect_says_who_cannot_read_a_frame(self, tmp_path, capsys, monkeypatch):
        path = tmp_path / "frame.gwf"
        path.write_bytes(self.frame(Repeated(2)))
        monkeypatch.setattr(Repeated, "decode", lambda data, count: [])
        assert main(["inspect", str(path)]) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert "quantizer 'test_repeated' from tests.test_outside cannot be used" in line

    @pytest.mark.skipif(not Path("/dev/zero").exists(), reason="there is no /dev/zero")
    def test_inspect_leaves_an_endless_frame_after_its_header(self, tmp_path):
        head = bytearray(bytes(self.frame(Halves()))[:48])
        head[40:48] = (1 << 40).to_bytes(8, "little")
        (tmp_path / "head").write_bytes(head)
        script = f"cat {tmp_path / 'head'} /dev/zero | {sys.executable} -m gradwire inspect -"
        limit = stretched(60)
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=limit)
        assert done.returncode == 1
        assert "coded by a part of another package; at most 1073741824 are read" in done.stderr


@dataclasses.dataclass(frozen=True, repr=False)
class Repeated(extension.Quantizer):
    """Each value as often as it is told."""

    times: int = 1
    kind: ClassVar[str] = "test_repeated"
    bits: ClassVar[int] = 32000

    def encode(self, values, *, step, key):
        return np.repeat(values, self.times)

    @classmethod
    def decode(cls, data, count):
        return np.frombuffer(data, "<f4").reshape(count, -1)[:, 0].astype(np.float32)


@dataclasses.dataclass(frozen=True, repr=False)
class Wrong(extension.Quantizer):
    """Goes wrong as it is told."""

    how: str = ""
    kind: ClassVar[str] = "test_wrong"
    bits: ClassVar[int] = 32

    def encode(self, values, *, step, key):
        if self.how == "interrupted":
            raise KeyboardInterrupt
        if self.how == "raises":
            raise KeyError("encode")
        if self.how == "no bytes":
            return 3
        if self.how == "too long":
            return bytes(4 * values.size + 65)
        if self.how == "too short":
            return b""
        return self.how.encode().ljust(4 * values.size, b"\0")

    @classmethod
    def decode(cls, data, count):
        how = data.rstrip(b"\0").decode()
        if how == "decode raises":
            raise IndexError("decode")
        if how == "no array":
            return [0.0] * count
        if how == "wrong dtype":
            return np.zeros(count)
        if how == "too few":
            return np.zeros(count - 1, np.float32)
        if how == "not finite":
            return np.full(count, np.inf, np.float32)
        return np.zeros(count, np.float32)


ENCODING = [
    ("raises", "encode raised KeyError: 'encode'"),
    ("no bytes", "encode must return bytes, got int"),
    ("too long", "at most 464 bytes for 100 values, got 465"),
    ("too short", "encode must return 1 to 32 bits per value, and 64 bytes"),
]
DECODING = [
    ("decode raises", "IndexError: decode", gradwire.CorruptFrameError),
    ("no array", "decode must return an array of float32, got list", gradwire.PluginError),
    (
        "wrong dtype",
        "must return an array of float32, got ndarray of float64",
        gradwire.PluginError,
    ),
    (
        "too few",
        r"decode must return an array of shape (100,), got (99,)",
        gradwire.CorruptFrameError,
    ),
    ("not finite", "decode must return finite values", gradwire.CorruptFrameError),
]


class TestAFaultyQuantizer:
    x: ClassVar = np.random.default_rng(2).standard_normal(1000).astype(np.float32)

    @pytest.mark.parametrize("memory", [*MEMORIES, *FILTERS], ids=name_of)
    @pytest.mark.parametrize(
        ("how", "message"), [*ENCODING, *((how, message) for how, message, _ in DECODING)]
    )
    def test_is_named_and_leaves_no_trace(self, how, message, memory):
        codec = gradwire.Codec(sparsify=TopK(k=100), quantize=Wrong(how), memory=memory)
        state = codec.init_state(1000)
        if state.residual is not None:
            state.load_state_dict(state.state_dict() | {"residual": self.x, "step": 3})
        before, out = state.state_dict(), np.full(5000, 7, np.uint8)
        for call in (
            lambda: codec.encode(self.x, state),
            lambda: codec.encode_into(self.x, state, out),
            lambda: codec.encode_at(self.x, state, np.arange(100, dtype=np.uint32)),
        ):
            with pytest.raises(gradwire.PluginError, match=re.escape(message)) as caught:
                call()
            assert (caught.value.preset, caught.value.what) == ("test_wrong", "quantizer")
            assert caught.value.distribution == "tests.test_outside"
            assert same_state(state.state_dict(), before)
        assert (out == 7).all()

    @pytest.mark.parametrize(("how", "message", "error"), DECODING)
    def test_is_caught_by_a_reader(self, how, message, error):
        codec = gradwire.Codec(sparsify=TopK(k=100), quantize=Wrong("fine"), memory=NoMemory())
        data = bytes(codec.encode(self.x))
        at = data.index(b"fine")
        data = forge(data, at, how.encode().ljust(20, b"\0"))
        out = np.full(1000, 7, np.float32)
        for call in (
            lambda: gradwire.decode(data, out),
            lambda: gradwire.decode_add(data, out),
            lambda: gradwire.Frame(data).values(),
        ):
            with pytest.raises(error, match=re.escape(message)):
                call()
        assert (out == 7).all()
        assert gradwire.Frame(data).indices().size == 100


class TestHostileBytes:
    def frame(self) -> bytes:
        codec = gradwire.Codec(sparsify=TopK(k=11), quantize=Halves(), memory=NoMemory())
        return bytes(codec.encode(np.random.default_rng(3).standard_normal(90).astype(np.float32)))

    def test_forged_frames_are_refused_or_finite(self):
        data, rng = self.frame(), np.random.default_rng(5)
        out = np.empty(90, np.float32)
        decoded = 0
        for _ in range(3000):
            at = int(rng.integers(4, len(data)))
            if 12 <= at < 16:
                continue
            field = rng.integers(0, 256, int(rng.integers(1, 5)), np.uint8).tobytes()
            forged = forge(data, at, field[: (12 - at if at < 12 else len(data) - at)])
            out.fill(7)
            try:
                gradwire.decode(forged, out)
            except (gradwire.GradwireError, ValueError):
                assert (out == 7).all()
            else:
                decoded += 1
                assert np.isfinite(out).all()
        assert decoded > 100

    def test_a_count_is_paid_for_in_bits(self):
        data = self.frame()
        with pytest.raises(gradwire.GradwireError):
            gradwire.decode(forge(data, 16, (2**27).to_bytes(8, "little") * 2))


def test_a_kind_has_one_class():
    for kind, message in [
        ("float32", "already uses"),
        ("Two Words", "must be a lower-case identifier"),
        ("a" * 64, "must be a lower-case identifier of at most 63 characters"),
    ]:
        with pytest.raises(TypeError, match=message):
            type("Another", (extension.Quantizer,), {"kind": kind, "bits": 8})


@pytest.mark.parametrize("bits", [0, 65537])
def test_bits_are_stated_and_in_range(bits):
    with pytest.raises(TypeError, match="Silent must set bits"):
        type("Silent", (extension.Quantizer,), {"kind": "test_silent"})
    odd = type("Odd", (Halves,), {"kind": "test_odd", "bits": bits})
    with pytest.raises(ValueError, match=r"Odd\.bits must be at"):
        gradwire.dense(quantize=odd())
