"""The calls on torch tensors: the same frames, without copies, with errors in torch's words."""

import numpy as np
import pytest
import torch

import gradwire
import gradwire.torch
from gradwire.memory import NoMemory
from gradwire.torch.backends.cpu import shared
from tests.presets.examples import made, names, presets
from tests.support import same_state

N = 3000
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]

dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)


@pytest.fixture
def tensor():
    return torch.randn(N, generator=torch.Generator().manual_seed(5))


class TestEncode:
    @dtypes
    @pytest.mark.parametrize("preset", presets, ids=names)
    def test_gives_the_frame_of_the_values_in_float32(self, preset, dtype, tensor):
        x = tensor.to(dtype)
        codec = made(preset, x.shape)
        state, expected_state = codec.init_state(N), codec.init_state(N)
        for _ in range(2):
            frame = gradwire.torch.encode(codec, x, state)
            expected = codec.encode(x.float().numpy(), expected_state)
            assert frame.dtype == str(dtype).removeprefix("torch.")
            assert np.array_equal(frame.indices(), expected.indices())
            assert np.array_equal(frame.values(), expected.values())
        if state.residual is not None:
            assert np.array_equal(state.residual, expected_state.residual)

    @dtypes
    def test_the_methods_of_a_codec_take_tensors(self, dtype, tensor):
        x, codec = tensor.to(dtype).reshape(50, -1).requires_grad_(), gradwire.topk(0.1)
        assert codec.init_state(x, name="w").numel == N
        pairs = [(codec.init_state(x, name="w"), codec.init_state(N, name="w")) for _ in range(3)]
        out = torch.zeros(codec.max_encoded_len(N), dtype=torch.uint8)
        first, second = pairs[0]
        frame = codec.encode(x, first)
        assert frame == gradwire.torch.encode(codec, x, second)
        assert frame.dtype == str(dtype).removeprefix("torch.")
        first, second = pairs[1]
        nbytes = codec.encode_into(x, first, out, max_nbytes=500)
        assert out[:nbytes].numpy().tobytes() == bytes(codec.encode(x, second, max_nbytes=500))
        first, second = pairs[2]
        positions = frame.indices()
        at = codec.encode_at(x, first, torch.from_numpy(positions))
        values = x.detach().float().reshape(-1).numpy()
        expected = codec.encode_at(values, second, positions)
        assert at.dtype == frame.dtype
        assert np.array_equal(at.indices(), positions)
        assert np.array_equal(at.values(), expected.values())
        assert same_state(first.state_dict(), second.state_dict())

    @pytest.mark.parametrize("into", [False, True], ids=["encode", "encode_into"])
    def test_asks_for_the_shape_where_the_codec_depends_on_it(self, into, tensor):
        # Without it, one column of all entries would be fitted: two values in place of 128.
        codec = gradwire.onebit()
        x = tensor[:2500].reshape(50, 50)
        state, out = codec.init_state(2500), torch.zeros(2000, dtype=torch.uint8)

        def encode(codec, x, state):
            if not into:
                return bytes(gradwire.torch.encode(codec, x, state))
            nbytes = gradwire.torch.encode_into(codec, x, state, out)
            return out[:nbytes].numpy().tobytes()

        with pytest.raises(ValueError, match=r"codec.for_shape\(\(50, 50\)\)"):
            encode(codec, x, state)
        assert state.step == 0
        assert not out.any()
        encode(codec, x.reshape(-1), state)
        assert state.step == 1
        shaped = codec.for_shape(x.shape)
        expected = shaped.encode(x.numpy(), shaped.init_state(2500))
        assert encode(shaped, x, shaped.init_state(2500)) == bytes(expected)

    def test_does_not_overwrite_what_it_reads(self, tensor):
        codec, before = gradwire.topk(0.05), tensor.clone()
        for out in (tensor.view(torch.uint8), tensor.view(torch.uint8)[-1:]):
            with pytest.raises(ValueError, match="out shares memory with x"):
                gradwire.torch.encode_into(codec, tensor, codec.init_state(N), out)
            assert torch.equal(tensor, before)

    def test_follows_the_codec_that_is_used(self, tensor):
        first, second = gradwire.topk(0.1), gradwire.topk(0.01)
        state = first.init_state(N)
        gradwire.torch.encode(second, tensor, state)
        assert state.codec == second

    def test_takes_any_shape_and_tensors_that_require_gradients(self, tensor):
        codec = gradwire.topk(0.05, memory=NoMemory())
        flat = gradwire.torch.encode(codec, tensor)
        assert gradwire.torch.encode(codec, tensor.reshape(30, 10, 10)) == flat
        assert gradwire.torch.encode(codec, torch.nn.Parameter(tensor)) == flat
        assert gradwire.torch.encode(codec, torch.tensor(3.0)).numel == 1
        assert gradwire.torch.encode(codec, torch.empty(0)).numel == 0

    def test_limits_the_size(self, tensor):
        codec = gradwire.topk(0.5)
        assert (
            gradwire.torch.encode(codec, tensor, codec.init_state(N), max_nbytes=500).nbytes <= 500
        )
        with pytest.raises(ValueError, match="max_nbytes must be at least 0"):
            gradwire.torch.encode(codec, tensor, codec.init_state(N), max_nbytes=-1)

    @dtypes
    def test_names_what_is_not_finite(self, dtype, tensor):
        codec = gradwire.topk(0.05)
        state = codec.init_state(N, name="layer.weight")
        gradwire.torch.encode(codec, tensor, state)
        before = state.state_dict()
        x = tensor.to(dtype)
        x[[7, 9]] = torch.inf
        with pytest.raises(gradwire.NonFiniteError) as caught:
            gradwire.torch.encode(codec, x, state)
        error = caught.value
        assert (error.count, error.first, error.name) == (2, 7, "layer.weight")
        assert same_state(state.state_dict(), before)

    def test_reads_in_place(self, tensor):
        array, _ = shared(tensor)
        assert array.ctypes.data == tensor.data_ptr()
        half, bfloat16 = shared(tensor.bfloat16())
        assert (half.dtype, bfloat16) == (np.uint16, True)


class TestEncodeInto:
    @dtypes
    def test_writes_the_bytes_of_encode(self, dtype, tensor):
        codec, x = gradwire.sidco(0.05), tensor.to(dtype)
        frame = gradwire.torch.encode(codec, x, codec.init_state(N))
        out = torch.zeros(5000, dtype=torch.uint8)
        written = gradwire.torch.encode_into(codec, x, codec.init_state(N), out)
        assert bytes(out[:written].numpy()) == bytes(frame)
        assert not out[written:].any()

    def test_trims_to_a_slot(self, tensor):
        codec = gradwire.topk(0.5)
        state = codec.init_state(N)
        slots = torch.zeros(2, 400, dtype=torch.uint8)
        written = gradwire.torch.encode_into(codec, tensor, state, slots[1])
        assert 300 < written <= 400
        sent = gradwire.torch.decode(slots[1, :written])
        assert torch.equal(sent + torch.from_numpy(state.residual), tensor)
        assert not slots[0].any()

    def test_the_slot_is_a_tensor_of_bytes(self, tensor):
        codec = gradwire.topk(0.5)
        with pytest.raises(TypeError, match=r"out must have dtype torch\.uint8, got"):
            gradwire.torch.encode_into(codec, tensor, codec.init_state(N), torch.zeros(4000))


@pytest.fixture
def frame(tensor):
    return gradwire.torch.encode(gradwire.topk(0.05, memory=NoMemory()), tensor)


class TestDecode:
    def test_gives_a_float32_tensor(self, frame, tensor):
        out = gradwire.torch.decode(frame)
        assert (out.dtype, out.shape) == (torch.float32, (N,))
        assert np.array_equal(out.numpy(), gradwire.decode(frame))
        out += 1

    def test_into_a_tensor_of_any_shape(self, frame):
        out = torch.full((30, 100), torch.nan)
        assert gradwire.torch.decode(frame, out) is out
        assert torch.equal(out.flatten(), gradwire.torch.decode(frame))

    def test_frames_may_be_tensors_of_bytes(self, frame):
        data = torch.frombuffer(bytearray(frame), dtype=torch.uint8)
        assert torch.equal(gradwire.torch.decode(data), gradwire.torch.decode(frame))
        out = torch.zeros(N)
        gradwire.torch.decode_add(data, out)
        assert torch.equal(out, gradwire.torch.decode(frame))

    def test_limits_the_length(self, frame):
        with pytest.raises(gradwire.FrameTooLargeError):
            gradwire.torch.decode(frame, max_numel=N - 1)
        with pytest.raises(TypeError, match="max_numel must be an integer"):
            gradwire.torch.decode(frame, max_numel="many")

    def test_corrupt_bytes_leave_the_tensor_alone(self, frame):
        data = torch.frombuffer(bytearray(frame), dtype=torch.uint8)
        data[60] ^= 1
        out = torch.ones(N)
        for call in (gradwire.torch.decode, gradwire.torch.decode_add):
            with pytest.raises(gradwire.CorruptFrameError):
                call(data, out)
        assert (out == 1).all()


def test_decode_add_scales(frame):
    out = torch.ones(N)
    gradwire.torch.decode_add(frame, out, scale=0.5)
    assert torch.equal(out, 1 + gradwire.torch.decode(frame) * 0.5)


class TestAutograd:
    def test_an_output_that_requires_gradients_is_refused(self, frame):
        out = torch.zeros(N, requires_grad=True)
        for call in (gradwire.torch.decode, gradwire.torch.decode_add):
            with pytest.raises(ValueError, match=r"out requires gradients.*torch\.no_grad"):
                call(frame, out)
            with torch.no_grad():
                call(frame, out)

    def test_writing_over_a_saved_tensor_is_found_out(self, frame):
        weight = torch.ones(N, requires_grad=True)
        saved = torch.ones(N)
        loss = (weight * saved).sum()
        gradwire.torch.decode_add(frame, saved)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()

    def test_inference_tensors_have_no_version_to_raise(self, frame):
        with torch.inference_mode():
            out = torch.zeros(N)
            gradwire.torch.decode_add(frame, out)
        assert out.count_nonzero() == frame.count


BAD_TENSORS = [
    ([1.0], TypeError, "must be a torch.Tensor, got list"),
    (np.zeros(N, np.float32), TypeError, "must be a torch.Tensor, got ndarray"),
    (torch.zeros(N, device="meta"), TypeError, "must have values, got one on meta"),
    (
        torch.zeros(N).to_sparse(),
        TypeError,
        r"must be dense, got layout torch.sparse_coo.*to_dense",
    ),
    (torch.zeros(N, dtype=torch.int32), TypeError, "must have dtype .*float32.*got torch.int32"),
    (torch.zeros(N, dtype=torch.complex64), TypeError, "must have dtype .*got torch.complex64"),
    (torch.zeros(N, 2)[:, 0], ValueError, r"must be contiguous.*strides \(2,\).*\.contiguous\(\)"),
]


@pytest.mark.parametrize(("bad", "error", "message"), BAD_TENSORS, ids=lambda v: str(v)[:20])
def test_tensors_that_do_not_fit_are_named(bad, error, message, frame):
    codec = gradwire.topk(0.1)
    state = codec.init_state(N)
    with pytest.raises(error, match="^tensor " + message):
        gradwire.torch.encode(codec, bad, state)
    assert state.step == 0
    for call in (gradwire.torch.decode, gradwire.torch.decode_add):
        with pytest.raises(error, match="^out " + message):
            call(frame, bad)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_outputs_are_float32(dtype, frame):
    with pytest.raises(TypeError, match=r"out must have dtype torch\.float32, got"):
        gradwire.torch.decode(frame, torch.zeros(N, dtype=dtype))


def test_another_length_is_named(frame):
    with pytest.raises(ValueError, match=str(N + 1)):
        gradwire.torch.decode(frame, torch.zeros(N + 1))
    codec = gradwire.topk(0.1)
    with pytest.raises(ValueError, match=f"x has {N - 1} elements, but the state has {N}"):
        gradwire.torch.encode(codec, torch.zeros(N - 1), codec.init_state(N))
