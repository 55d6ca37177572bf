"""The CUDA backend, over tensors on the CPU and the emulated kernels: all is as on the CPU."""

import copy
import pickle
from typing import ClassVar

import numpy as np
import pytest
import torch

import gradwire
from gradwire import memory, quantize, sparsify
from gradwire.extension import Sparsifier
from gradwire.torch.backends import cpu, cuda
from gradwire.torch.backends.cuda import encoding, operators, structs
from tests.csrc.emulated.operators import emulate
from tests.presets.examples import DEGENERATE, gradient, made, names, presets
from tests.support import same_state

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
N = 2500


class First(Sparsifier):
    kind: ClassVar[str] = "tests_cuda_first"

    def select(self, values, *, step, key):
        return np.arange(min(5, values.size), dtype=np.uint32)

    def max_count(self, numel):
        return min(5, numel)


@pytest.fixture(scope="module", autouse=True)
def emulated():
    emulate()


@pytest.fixture
def kernels(monkeypatch):
    """How often kernels have encoded."""
    calls = []
    real = encoding.encode

    def counted(codecs, *rest):
        calls.append(len(codecs))
        return real(codecs, *rest)

    monkeypatch.setattr(encoding, "encode", counted)
    return calls


def tensor(seed, numel=N, dtype=torch.float32):
    return torch.from_numpy(gradient(numel, seed)).to(dtype)


def pair(codec, numel=N, **options):
    """States of the CUDA backend and of the CPU."""
    options = {"name": "w", "stream": 3} | options
    return tuple(each.init_state(codec, numel, *options.values()) for each in (cuda, cpu))


def both(codec, states, x, max_nbytes=None):
    """Encode on either side, and compare all there is; the frame."""
    one, other = (
        bytes(each.encode(codec, x, state, max_nbytes))
        for each, state in zip((cuda, cpu), states, strict=True)
    )
    assert one == other
    alike(states)
    return one


def alike(states):
    one, other = states
    assert same_state(one.state_dict(), other.state_dict())
    assert one.last == other.last
    assert one.step == other.step
    assert one.codec == other.codec
    assert one.learning_rate == other.learning_rate
    assert one.nbytes == other.nbytes


class TestEveryPreset:
    @pytest.mark.parametrize("preset", presets, ids=names)
    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_frames_and_states_are_those_of_the_cpu(self, preset, dtype, kernels):
        codec = made(preset, (N,))
        states = pair(codec)
        for step in range(3):
            frame = both(codec, states, tensor(step, dtype=dtype))
        assert kernels == [1, 1, 1], "no encode went by the host"
        out = torch.zeros(N)
        cuda.decode(frame, out, None)
        assert torch.equal(out, cpu.decode(frame, None, None))
        cuda.decode_add(torch.frombuffer(bytearray(frame), dtype=torch.uint8), out, 0.5)
        expected = cpu.decode(frame, None, None)
        cpu.decode_add(frame, expected, 0.5)
        assert torch.equal(out, expected)

    @pytest.mark.parametrize("preset", presets, ids=names)
    def test_a_rollback_undoes_one_step(self, preset):
        codec = made(preset, (N,))
        states = pair(codec)
        both(codec, states, tensor(0))
        before = states[0].state_dict()
        both(codec, states, tensor(1))
        for state in states:
            state.rollback()
        alike(states)
        assert same_state(states[0].state_dict(), before)
        for state in states:
            with pytest.raises(ValueError, match="no encode to roll back"):
                state.rollback()
        both(codec, states, tensor(2))

    @pytest.mark.parametrize("preset", presets, ids=names)
    def test_a_checkpoint_goes_on_on_the_other_side(self, preset):
        codec = made(preset, (N,))
        states = pair(codec)
        for step in range(2):
            both(codec, states, tensor(step))
        crossed = pair(codec)
        for new, old in zip(crossed, reversed(states), strict=True):
            new.load_state_dict(old.state_dict())
        alike(crossed)
        for step in range(2, 4):
            assert both(codec, crossed, tensor(step)) == both(codec, states, tensor(step))

    @pytest.mark.parametrize("preset", presets, ids=names)
    def test_frames_keep_to_a_limit(self, preset):
        codec = made(preset, (N,))
        states = pair(codec)
        whole = len(both(codec, states, tensor(0)))
        limit = whole - whole // 3
        if codec.sparsify.selects:
            assert len(both(codec, states, tensor(1), limit)) <= limit
        said = []
        for each, state in zip((cuda, cpu), states, strict=True):
            with pytest.raises(ValueError, match="bytes") as caught:
                each.encode(codec, tensor(1), state, 20)
            said.append(str(caught.value))
        assert said[0] == said[1]
        both(codec, states, tensor(2))

    @pytest.mark.parametrize("preset", presets, ids=names)
    @pytest.mark.parametrize("case", DEGENERATE)
    def test_degenerate_tensors(self, preset, case):
        x = torch.from_numpy(DEGENERATE[case])
        codec = made(preset, (x.numel(),))
        states = pair(codec, x.numel())
        for _ in range(2):
            both(codec, states, x)


class TestStates:
    def test_what_a_state_has_is_what_one_on_the_cpu_has(self):
        codec = gradwire.adam(ratio=0.02)
        states = pair(codec)
        for step in range(2):
            for state in states:
                state.learning_rate = 0.1 / (step + 1)
            both(codec, states, tensor(step))
            one, other = states
            for name in ("residual", "second_moment"):
                assert np.array_equal(getattr(one, name), getattr(other, name))
            assert one.momentum is other.momentum is None
            assert one.residual_norm == pytest.approx(other.residual_norm, rel=1e-12)
            assert (one.name, one.stream, one.numel) == (other.name, other.stream, other.numel)
            assert repr(one) == repr(other)
        for state in states:
            with pytest.raises(ValueError, match="learning_rate"):
                state.learning_rate = float("nan")
            state.reset()
        alike(states)
        both(codec, states, tensor(5))

    def test_copies_are_states_of_their_own(self):
        codec = gradwire.topk(ratio=0.02)
        states = pair(codec)
        both(codec, states, tensor(0))
        for twin in (copy.deepcopy(states[0]), pickle.loads(pickle.dumps(states[0]))):
            assert same_state(twin.state_dict(), states[0].state_dict())
            cuda.encode(codec, tensor(1), twin, None)
        alike(states)

    def test_a_bad_checkpoint_changes_nothing(self):
        codec = gradwire.topk(ratio=0.02)
        states = pair(codec)
        both(codec, states, tensor(0))
        bad = states[0].state_dict() | {"numel": 7}
        with pytest.raises(ValueError, match="7 elements"):
            states[0].load_state_dict(bad)
        alike(states)

    def test_the_codec_may_send_another_share(self, kernels):
        states = pair(gradwire.sidco(ratio=0.1))
        for step, ratio in enumerate((0.1, 0.02, 0.3)):
            both(gradwire.sidco(ratio=ratio), states, tensor(step))
        for state in states:
            state.rollback()
        alike(states)
        assert kernels == [1, 1, 1]

    def test_structs_are_those_of_the_library(self):
        assert cuda.buckets.takes(gradwire.topk(0.1))
        with pytest.raises(RuntimeError, match="another version"):
            torch.ops.gradwire_emulated.complete_pieces(torch.zeros(3, dtype=torch.uint8))
        assert structs.Piece.limit.offset > 0


class TestWhatKernelsDoNotTake:
    @pytest.mark.parametrize(
        "parts",
        [
            {"sparsify": First()},
            {"sparsify": sparsify.TopK(k=9), "memory": memory.Residual(low_memory=True)},
            {"sparsify": sparsify.TopK(k=9), "memory": memory.Residual(dtype="bfloat16")},
        ],
        ids=["python", "low memory", "bfloat16"],
    )
    def test_goes_by_the_host(self, kernels, parts):
        codec = gradwire.Codec(**parts)
        states = pair(codec)
        for step in range(3):
            both(codec, states, tensor(step))
        assert kernels == []

    def test_moves_a_state_to_the_host_and_back(self, kernels):
        codec = gradwire.sidco(ratio=0.05)
        states = pair(codec)
        both(codec, states, tensor(0))
        positions = np.array([3, 70, 71], np.uint32)
        frames = [
            codec.encode_at(tensor(1).numpy(), state, positions)
            for state in (states[0].on_host(), states[1])
        ]
        assert frames[0] == frames[1]
        alike(states)
        both(codec, states, tensor(2))
        assert kernels == [1, 1]

    def test_a_state_of_the_core_is_encoded_by_the_core(self, kernels):
        codec = gradwire.topk(ratio=0.02)
        states = codec.init_state(N), codec.init_state(N)
        both(codec, states, tensor(0))
        assert kernels == []

    def test_without_a_state_kernels_encode_what_needs_none(self, kernels):
        codec = gradwire.Codec(
            sparsify=sparsify.TopK(ratio=0.02),
            quantize=quantize.Float16(),
            memory=memory.NoMemory(),
        )
        assert cuda.encode(codec, tensor(0), None, None) == cpu.encode(codec, tensor(0), None, None)
        assert kernels == [1]
        with pytest.raises((TypeError, ValueError), match="state"):
            cuda.encode(gradwire.topk(0.1), tensor(0), None, None)


class TestOnTwoDevices:
    """A tensor on the CPU with a frame on a GPU, or the other way round, goes by the host."""

    def test_operators_are_not_called_for_another_device(self, kernels, monkeypatch):
        codec = gradwire.topk(ratio=0.02)
        states, x = pair(codec), tensor(0)
        frame = torch.frombuffer(bytearray(both(codec, states, x)), dtype=torch.uint8)
        monkeypatch.setattr(operators, "_device", "another")
        out = torch.zeros(N)
        assert torch.equal(cuda.decode(frame, out, None), cpu.decode(frame, None, None))
        cuda.decode_add(frame, out, 2.0)
        assert torch.equal(out, 3 * cpu.decode(frame, None, None))
        room = torch.zeros(900, dtype=torch.uint8)
        written = cuda.encode_into(codec, x, states[0], room, None)
        assert room[:written].numpy().tobytes() == bytes(cpu.encode(codec, x, states[1], None))
        assert kernels == [1], "only what was encoded before"


class TestBucket:
    def test_what_is_not_finite_is_named_from_the_averages(self):
        bucket = cuda.bucket(tensor(0))
        bucket.gradient(0, N, 1.0)  # takes a copy, as parts that are written in Python do
        bucket.unpack([(0, 10)], torch.tensor([0.0] * 7 + [torch.inf] * 3))
        assert not bucket.finite()
        assert bucket.not_finite(0, N, 1) == (3, 7)

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_runs_are_packed_and_unpacked_as_on_the_cpu(self, dtype):
        runs, wide = [(3, 10), (20, 21), (100, 400)], torch.promote_types(dtype, torch.float32)
        found = []
        for each in (cuda, cpu):
            bucket = each.bucket(tensor(0, dtype=dtype))
            out = torch.zeros(308, dtype=wide)
            assert bucket.pack(runs, out)
            bucket.unpack(runs, out / 3)
            bucket.scatter([np.array([5, 9]), np.array([7])], torch.arange(3) / 7)
            found.append((out, bucket.values))
        assert all(map(torch.equal, *found))


class TestErrors:
    def test_what_is_not_finite_is_said_as_on_the_cpu(self):
        codec = gradwire.topk(ratio=0.02)
        states = pair(codec)
        both(codec, states, tensor(0))
        before = states[0].state_dict()
        bad = tensor(1)
        bad[[3, 900]] = torch.nan
        said = []
        for each, state in zip((cuda, cpu), states, strict=True):
            with pytest.raises(gradwire.NonFiniteError) as caught:
                each.encode(codec, bad, state, None)
            said.append((str(caught.value), caught.value.args))
        assert said[0] == said[1]
        alike(states)
        assert same_state(states[0].state_dict(), before)
        both(codec, states, tensor(2))

    def test_other_arguments_are_refused_as_on_the_cpu(self):
        codec = gradwire.topk(ratio=0.02)
        states = pair(codec)
        calls = [
            lambda each, state: each.encode(codec, tensor(0, 30), state, None),
            lambda each, state: each.encode(gradwire.sidco(0.1), tensor(0), state, None),
            lambda each, state: each.encode(codec, tensor(0), state, 3),
            lambda each, state: each.encode(codec, tensor(0), state, -1),
            lambda each, state: each.encode(codec, tensor(0)[::2], state, None),
            lambda each, state: each.encode(codec, tensor(0).int(), state, None),
        ]
        for call in calls:
            said = []
            for each, state in zip((cuda, cpu), states, strict=True):
                with pytest.raises((ValueError, TypeError)) as caught:
                    call(each, state)
                said.append((type(caught.value), str(caught.value)))
            assert said[0] == said[1]
        both(codec, states, tensor(0))

    def test_a_bad_frame_is_said_as_on_the_cpu_and_changes_nothing(self):
        codec = gradwire.topk(ratio=0.02)
        frame = bytearray(cpu.encode(codec, tensor(0), codec.init_state(N), None))
        cases = [
            frame[:-3],
            bytes([0]) + frame[1:],
            frame[:60] + bytes([frame[60] ^ 1]) + frame[61:],
        ]
        for case in cases:
            out, before = tensor(1), tensor(1)
            for call in (
                lambda each, out, case=case: each.decode(bytes(case), out, None),
                lambda each, out, case=case: each.decode_add(bytes(case), out, 2.0),
            ):
                said = []
                for each in (cuda, cpu):
                    with pytest.raises(gradwire.GradwireError) as caught:
                        call(each, out)
                    said.append(str(caught.value))
                assert said[0] == said[1]
                assert torch.equal(out, before)
        with pytest.raises(gradwire.FrameTooLargeError):
            cuda.decode(bytes(frame), torch.zeros(9), None)


class TestEncodeInto:
    def test_writes_what_the_cpu_writes(self):
        codec = gradwire.topk(ratio=0.5)
        outs = torch.full((2, 900), 9, dtype=torch.uint8)
        states = pair(codec)
        written = [
            each.encode_into(codec, tensor(0), state, out, limit)
            for each, state, out, limit in zip((cuda, cpu), states, outs, (600, 600), strict=True)
        ]
        assert written[0] == written[1] <= 600
        assert torch.equal(*outs)
        alike(states)
        decoded = cuda.decode(outs[0, : written[0]], None, None)
        assert torch.equal(decoded, cpu.decode(outs[1, : written[0]], None, None))
