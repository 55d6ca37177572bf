"""The CUDA backend, over tensors on the CPU and the emulated kernels: all is as on the CPU."""

import copy
import gc
import operator
import pickle
import weakref
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import torch

import gradwire
from gradwire import memory, quantize, sparsify
from gradwire.extension import Sparsifier
from gradwire.torch.backends import cpu, cuda
from gradwire.torch.backends.cuda import operators, structs
from gradwire.torch.backends.staging import Staging
from tests.csrc.emulated.operators import emulate
from tests.csrc.parts import PRESETS
from tests.presets.examples import gradient, made_for_kernels
from tests.support import same_state

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
N = 2500
presets, names = list(PRESETS.values()), list(PRESETS)


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
    real = cuda.encoding.start

    def counted(codecs, *rest, **options):
        calls.append(len(codecs))
        return real(codecs, *rest, **options)

    monkeypatch.setattr(cuda.encoding, "start", counted)
    return calls


def tensor(seed, numel=N, dtype=torch.float32):
    return torch.from_numpy(gradient(numel, seed)).to(dtype)


def test_a_device_that_runs_the_kernels_is_told_from_one_that_does_not(monkeypatch):
    assert operators.hindrance(torch.device("cpu")) is None
    assert "Meta" in operators.hindrance(torch.device("meta"))
    monkeypatch.setattr(operators, "_library", "gradwire_of_another_version")
    assert (
        operators.hindrance(torch.device("cpu")) == "the library is of another version of gradwire"
    )


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


@pytest.mark.parametrize("name", ["bfloat16", "float32", "float16"])
def test_kernels_send_the_floats_themselves_that_the_core_codes_without_loss(kernels, name):
    codec = gradwire.topk(ratio=0.1, quantize=quantize.Lossless(name))
    states, x = pair(codec), tensor(1)
    one, other = (
        each.encode(codec, x, state, None) for each, state in zip((cuda, cpu), states, strict=True)
    )
    assert kernels == [1]
    assert len(other) < len(one) <= codec.max_encoded_len(N)
    np.testing.assert_array_equal(gradwire.decode(one), gradwire.decode(other))
    assert same_state(states[0].state_dict(), states[1].state_dict())
    # Kernels leave frames of blocks to the host.
    np.testing.assert_array_equal(cuda.decode(other, None, None), gradwire.decode(other))
    assert not operators.takes(codec.replace(quantize=quantize.Lossless()))


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
        codec = made_for_kernels(preset, (N,))
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

    def test_a_rollback_of_many_takes_one_call_and_one_wait(self, monkeypatch):
        calls = []
        real, library = operators.operators(), SimpleNamespace()
        library.rollback_bucket = lambda *given: calls.append(real.rollback_bucket(*given))
        monkeypatch.setattr(cuda.states, "operators", lambda: library)
        waits = []
        monkeypatch.setattr(Staging, "wait", lambda self, after: waits.append(after))
        codecs = [gradwire.topk(ratio=0.02), gradwire.sidco(ratio=0.02), gradwire.topk(ratio=0.1)]
        states = [pair(codec) for codec in codecs]
        for codec, each in zip(codecs, states, strict=True):
            both(codec, each, tensor(0))
        before = [one.state_dict() for one, _ in states]
        for codec, each in zip(codecs, states, strict=True):
            both(codec, each, tensor(1))
        states[2][0].on_host()  # that one can be undone there no more
        with pytest.raises(ValueError, match="no encode to roll back"):
            cuda.rollback([one for one, _ in states])
        assert not calls
        cuda.rollback([one for one, _ in states[:2]] + [states[2][1]])
        assert (len(calls), len(waits)) == (1, 1)
        cpu.rollback([other for _, other in states[:2]])
        for each, expected in zip(states[:2], before, strict=False):
            alike(each)
            assert same_state(each[0].state_dict(), expected)
        with pytest.raises(ValueError, match="no encode to roll back"):
            cuda.rollback([states[0][0]])

    @pytest.mark.parametrize("preset", presets, ids=names)
    def test_a_checkpoint_goes_on_on_the_other_side(self, preset):
        codec = made_for_kernels(preset, (N,))
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
        codec = made_for_kernels(preset, (N,))
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


def test_second_moments_in_bfloat16_are_the_host_s():
    codec = gradwire.adam(0.02).replace(memory=memory.AdamCorrection(low_memory=True))
    assert not operators.takes(codec)
    states = pair(codec)
    for step in range(3):
        both(codec, states, tensor(step))
    for state in states:
        state.rollback()
    alike(states)


class TestStates:
    def test_what_a_state_has_is_what_one_on_the_cpu_has(self):
        codec = gradwire.adam(ratio=0.02, quantize=quantize.BFloat16())
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
        assert operators.takes(gradwire.topk(0.1))
        with pytest.raises(RuntimeError, match="another version"):
            operators.operators().complete_pieces(torch.zeros(3, dtype=torch.uint8))
        assert structs.Piece.limit.offset > 0


class TestSingleTensors:
    def test_a_state_is_made_where_the_tensor_lies(self, kernels, monkeypatch):
        monkeypatch.setattr("gradwire.torch.backends.backend_for", lambda *_: cuda)
        codec, x = gradwire.sidco(ratio=0.02), tensor(0).reshape(50, -1)
        state = gradwire.torch.init_state(codec, x, name="w", stream=2)
        assert (state.numel, state.name, state.stream) == (N, "w", 2)
        expected = codec.init_state(N, name="w", stream=2)
        for step in range(3):
            x = tensor(step).reshape(50, -1)
            assert gradwire.torch.encode(codec, x, state) == codec.encode(x.numpy(), expected)
        alike((state, expected))
        assert kernels == [1, 1, 1]
        assert isinstance(gradwire.torch.init_state(gradwire.dense(), x), type(state))

    def test_on_the_cpu_it_is_the_state_of_the_codec(self):
        state = gradwire.torch.init_state(gradwire.topk(0.1), torch.zeros(3, 4))
        assert type(state) is gradwire.State
        assert state.numel == 12
        with pytest.raises(ValueError, match="stream"):
            gradwire.torch.init_state(gradwire.topk(0.1), torch.zeros(3), stream=-1)

    def test_methods_of_the_codec_take_a_state_on_a_device(self, kernels):
        codec = gradwire.topk(ratio=0.02)
        states, x = pair(codec), tensor(1).numpy()
        both(codec, states, tensor(0))
        positions, room = np.array([3, 70], np.uint32), np.zeros(2000, np.uint8)
        for call in (
            lambda state: codec.preview(x, state).tobytes(),
            lambda state: bytes(codec.encode(x, state)),
            lambda state: codec.encode_into(x, state, room),
            lambda state: bytes(codec.encode_at(x, state, positions)),
            lambda state: bytes(codec.flush(state)),
        ):
            assert len({call(state) for state in states}) == 1
            alike(states)
        both(codec, states, tensor(2))
        assert kernels == [1, 1]
        with pytest.raises(TypeError):
            codec.flush(None)


class TestPlans:
    def test_a_state_owns_those_of_its_bucket(self, monkeypatch):
        made = []

        class Counted(operators.EncodePlan):
            def __init__(self, *arguments):
                super().__init__(*arguments)
                made.append(self.number)

        monkeypatch.setattr(operators, "EncodePlan", Counted)
        codec = gradwire.topk(ratio=0.02)
        states = [cuda.init_state(codec, 9, f"w{i}", 0) for i in range(70)]
        for step in range(2):
            for state in states:
                cuda.encode(codec, tensor(step, 9), state, None)
        assert len(made) == 70
        del states, state
        gc.collect()
        with pytest.raises(RuntimeError, match="there is no plan"):
            operators.operators().encode_room(made[0], [])

    def test_work_in_memory_that_they_share(self):
        codecs = [made_for_kernels(preset, (N,)) for preset in presets[::3]]
        lengths = [N, 9000, 300]
        states = [[pair(codec, numel) for codec in codecs] for numel in lengths]
        for step in range(3):
            for numel, own in zip(lengths, states, strict=True):
                for codec, each in zip(codecs, own, strict=True):
                    both(codec, each, tensor(step, numel))


class TestWhatKernelsDoNotTake:
    @pytest.mark.parametrize(
        "codec",
        [
            gradwire.Codec(sparsify=First()),
            gradwire.Codec(sparsify=sparsify.TopK(ratio=0.1), quantize=quantize.Affine(4)),
            *(gradwire.gaussiank(0.05), gradwire.redsync(0.05), gradwire.adaptive()),
            *(gradwire.sidco(0.05, distribution="exponential"), gradwire.sidco(0.05, stages=2)),
            gradwire.adacomp().for_shape((N,)),
        ],
        ids=repr,
    )
    def test_goes_by_the_host(self, codec, kernels):
        assert not operators.takes(codec)
        states = pair(codec)
        for step in range(3):
            frame = both(codec, states, tensor(step))
        assert kernels == []
        decoded = cuda.decode(frame, torch.zeros(N), None)
        assert torch.equal(decoded, cpu.decode(frame, None, None))

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


class TestRoom:
    """Where kernels write frames to."""

    def test_frames_are_written_where_they_are_to_be_and_nowhere_else(self):
        codec = gradwire.topk(ratio=0.02)
        for ends in ([0, N], [0, 1000, 1000, 1800, 1800, N]):
            numels = [stop - start for start, stop in zip(ends[::2], ends[1::2], strict=True)]
            states = [cuda.init_state(codec, numel, "w", 3) for numel in numels]
            limits = [codec.max_encoded_len(numel) for numel in numels]
            room = torch.full((64 + sum(limits) + 64,), 9, dtype=torch.uint8)
            out, codecs = room[64 : 64 + sum(limits)], [codec] * len(states)
            rows = cuda.encoding.encode(codecs, states, ends, limits, tensor(0), 1.0, out)
            expected = b"".join(
                bytes(
                    cpu.encode(codec, tensor(0)[start:stop], codec.init_state(stop - start), None)
                )
                for start, stop in zip(ends[::2], ends[1::2], strict=True)
            )
            assert out[: rows[:, 0].sum()].numpy().tobytes() == expected
            assert (room[:64] == 9).all()
            assert (room[-64:] == 9).all()

    def test_room_that_is_too_small_or_not_aligned_is_refused_before_anything_changes(self):
        codec = gradwire.topk(ratio=0.02)
        state = cuda.init_state(codec, N, "w", 3)
        limit = codec.max_encoded_len(N)
        room = torch.zeros(limit + 64, dtype=torch.uint8)
        for out, said in ((room[: limit - 1], f"{limit} bytes"), (room[8:], "multiple of 16")):
            with pytest.raises(RuntimeError, match=said):
                cuda.encoding.encode([codec], [state], [0, N], [limit], tensor(0), 1.0, out)
        assert state.step == 0
        rows = cuda.encoding.encode([codec], [state], [0, N], [limit], tensor(0), 1.0, room)
        assert rows[0, 0] > 0


def bucketed(x, codecs, states, limits, positions, scale=1.0):
    """Encode a bucket of equal parts on either side, and compare all there is; the table."""
    made, part = [], x.numel() // len(codecs)
    ends = [end for i in range(len(codecs)) for end in (i * part, (i + 1) * part)]
    for side, each in enumerate((cuda, cpu)):
        out, own = torch.zeros(sum(limits), dtype=torch.uint8), [pair[side] for pair in states]
        table, error = each.bucket(x.clone()).encode(
            codecs, own, ends, limits, positions, out, scale
        )
        made.append((table.reshape(-1, 6)[:, :5].tolist(), out.tolist(), str(error)))
    assert made[0] == made[1]
    for each in states:
        alike(each)
    return made[0][0]


class TestErrors:
    def test_wrong_positions_are_said_as_on_the_cpu(self, kernels):
        codec = gradwire.topk(ratio=0.02)
        states = [pair(codec)]
        for wrong in ([3, 3], [7, N]):
            bucketed(tensor(0), [codec], states, [900], [np.array(wrong, np.uint32)])
        assert kernels == [1, 1]

    def test_positions_may_be_given_for_some(self, kernels):
        codec = gradwire.topk(ratio=0.02)
        states = [pair(codec, name=f"w{i}") for i in range(3)]
        for step, count in enumerate([20, 700]):  # the plan has to grow
            x = torch.cat([tensor(3 * step + i) for i in range(3)])
            given = np.arange(count, dtype=np.uint32) * 3
            bucketed(x, [codec] * 3, states, [40000] * 3, [given, None, given[:0]], 4.0)
        assert kernels == [3, 3]

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


def refused(each, state):
    with pytest.raises(gradwire.NonFiniteError):
        each.encode(state.codec, torch.full((N,), torch.nan), state, None)


class TestStatesOfAPlan:
    """A plan has the bytes of states from step to step, and is never mistaken about them."""

    def bucket(self, codec, count=3, **options):
        return [pair(codec, N, name=f"w{i}", **options) for i in range(count)]

    def step(self, codec, states, seed, dtype=torch.float32):
        x = torch.cat([tensor(10 * seed + i) for i in range(len(states))]).to(dtype)
        bucketed(x, [codec] * len(states), states, [4000] * len(states), [None] * len(states))

    @pytest.fixture
    def made(self, monkeypatch):
        """How often states were looked up on the device."""
        calls = []
        real = cuda.states.DeviceState._moved

        def counted(state, device):
            calls.append(state.name)
            return real(state, device)

        monkeypatch.setattr(cuda.states.DeviceState, "_moved", counted)
        return calls

    def test_they_are_looked_up_once(self, made):
        codec = gradwire.topk(ratio=0.02)
        states = self.bucket(codec)
        for seed in range(3):
            self.step(codec, states, seed)
        assert made == ["w0", "w1", "w2"]

    @pytest.mark.parametrize("which", [0, 1, 2])
    @pytest.mark.parametrize(
        "change",
        {
            "load": lambda each, state, other: state.load_state_dict(other.state_dict()),
            "host": lambda each, state, other: state.on_host(),
            "reset": lambda each, state, other: state.reset(),
            "rollback": lambda each, state, other: state.rollback(),
            "alone": lambda each, state, other: each.encode(state.codec, tensor(70), state, None),
            "failed": lambda each, state, other: refused(each, state),
        }.items(),
        ids=lambda each: each[0],
    )
    def test_what_changes_a_state_is_in_the_next_encode(self, change, which):
        codec = gradwire.topk(ratio=0.02)
        states, others = self.bucket(codec), self.bucket(codec)
        for seed in range(2):
            self.step(codec, states, seed)
            self.step(codec, others, seed + 5)
        for side, each in enumerate((cuda, cpu)):
            change[1](each, states[which][side], others[which][side])
        for seed in range(2, 4):
            self.step(codec, states, seed)

    def test_the_memory_of_a_state_that_left_is_free(self):
        codec = gradwire.topk(ratio=0.02)
        states = self.bucket(codec)
        self.step(codec, states, 0)
        for act in (
            lambda state: state.load_state_dict(state.state_dict()),
            lambda state: state.on_host(),
        ):
            self.step(codec, states, 1)
            kept = [weakref.ref(one._device) for one, _ in states]
            for one, other in states:
                act(one)
                act(other)
            gc.collect()
            assert [each() for each in kept] == [None] * 3

    def test_states_may_be_in_other_buckets_and_in_another_order(self):
        codec = gradwire.topk(ratio=0.02)
        states = self.bucket(codec, 4)
        for seed, order in enumerate(
            ([0, 1, 2], [0, 2, 1], [0, 1, 2], [0, 1, 3], [3, 0], [0, 1, 2], [0], [0, 1, 2, 3])
        ):
            self.step(codec, [states[at] for at in order], seed)

    def test_another_state_in_the_place_of_one_is_another_one(self):
        codec = gradwire.topk(ratio=0.02)
        states = self.bucket(codec)
        for seed in range(3):
            self.step(codec, states, seed)
            states[1] = pair(codec, N, name="w1")

    def test_other_dtypes_and_codecs_have_plans_of_their_own(self):
        states = self.bucket(gradwire.sidco(ratio=0.02))
        for seed, (ratio, dtype) in enumerate(
            [(0.02, DTYPES[0]), (0.02, DTYPES[3]), (0.1, DTYPES[0]), (0.02, DTYPES[0])]
        ):
            self.step(gradwire.sidco(ratio=ratio), states, seed, dtype)

    def test_on_another_device_states_go_along(self, monkeypatch):
        codec = gradwire.topk(ratio=0.02)
        states = [one for one, _ in self.bucket(codec)]
        shared: list[torch.Tensor] = []
        for name in ("cpu", "meta", "cpu"):
            device = torch.device(name)
            if name == "cpu":
                kept = states[0].state_dict()
            else:  # nothing is there to be read
                monkeypatch.setattr(cuda.states.DeviceState, "_read", lambda _, kept=kept: kept)
            with cuda.states.on_device(states, device, shared):
                assert [each.device.type for each in shared] == [name] * 3
                assert all(map(operator.is_, shared, [each._device for each in states]))

    def test_a_learning_rate_is_in_the_next_encode(self):
        codec = gradwire.adam(ratio=0.02, quantize=quantize.BFloat16())
        states = self.bucket(codec)
        for seed, rate in enumerate((0.1, 0.1, 0.02, 0.3)):
            for state in states[1]:
                state.learning_rate = rate
            self.step(codec, states, seed)

    def test_a_state_in_use_is_an_error_and_leaves_the_others_free(self):
        codec = gradwire.topk(ratio=0.02)
        states = self.bucket(codec)
        self.step(codec, states, 0)
        own = [one for one, _ in states]
        with own[1]._used(), pytest.raises(gradwire.StateInUseError):
            self.step(codec, states, 1)
        for one in own:
            assert one.step == 1
        with pytest.raises(gradwire.StateInUseError):
            self.step(codec, [states[0], states[0]], 1)
        self.step(codec, states, 2)


class TestEncodesThatAreStarted:
    """What is asked of a state before the host knows how its encode ended."""

    ends: ClassVar[list[int]] = [0, N, N, 2 * N, 2 * N, 3 * N]

    def started(self, codec, bad=()):
        """Encode once, start another one; states on both sides of which the CPU's have both."""
        states = [pair(codec, N, name=f"w{i}") for i in range(3)]
        out = torch.zeros(60000, dtype=torch.uint8)
        for seed in range(2):
            x = torch.cat([tensor(10 * seed + i) for i in range(3)])
            if seed:
                x[list(bad)] = torch.nan
            for side, module in enumerate((cuda, cpu)):
                own = [each[side] for each in states]
                if side == 0:
                    encoding = cuda.encoding.start(
                        [codec] * 3, own, self.ends, [4000] * 3, x, 1.0, out
                    )
                    encoding.mark()
                else:
                    module.bucket(x.clone()).encode(
                        [codec] * 3, own, self.ends, [4000] * 3, [None] * 3, out.clone(), 1.0
                    )
        return states, encoding

    ASKED: ClassVar = {
        "step": lambda each, state: state.step,
        "last": lambda each, state: state.last,
        "codec": lambda each, state: state.codec.get_config(),
        "residual": lambda each, state: state.residual.tolist(),
        "dict": lambda each, state: state.state_dict()["step"],
        "copy": lambda each, state: copy.deepcopy(state).step,
        "host": lambda each, state: state.on_host().step,
        "encode": lambda each, state: bytes(each.encode(state.codec, tensor(50), state, None)),
    }

    @pytest.mark.parametrize("bad", [(), (3,), (N + 3, 2 * N), (3 * N - 1,)], ids=str)
    @pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
    def test_is_answered_as_on_the_cpu(self, asked, bad):
        states, _ = self.started(gradwire.topk(ratio=0.02), bad)
        for one, other in reversed(states):
            assert asked(cuda, one) == asked(cpu, other)
        for each in states:
            alike(each)

    @pytest.mark.parametrize("bad", [None, 0, 1, 2])
    def test_a_rollback_undoes_those_that_have_not_failed(self, bad):
        states, _ = self.started(gradwire.topk(ratio=0.02), () if bad is None else (N * bad + 5,))
        for side, module in enumerate((cuda, cpu)):
            own = [each[side] for each in states]
            for each in own[: 3 if bad is None else bad]:
                module.rollback([each])
            for each in own[3 if bad is None else bad :]:
                if side == 0:
                    with pytest.raises(ValueError, match="no encode to roll back"):
                        module.rollback([each])
        for each in states:
            alike(each)

    def test_what_is_known_of_an_encode_stays(self):
        states, encoding = self.started(gradwire.topk(ratio=0.02), (N + 3,))
        rows = encoding.outcomes()
        assert len(rows) == 1
        wrong = np.full((3, cuda.states.COLUMNS), 5, np.int64)
        assert (encoding.outcomes(wrong) == rows).all()
        for each in states:
            alike(each)
