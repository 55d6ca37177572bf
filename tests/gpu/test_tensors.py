"""The functions on tensors that lie on a GPU: the bytes of the CPU, in the order of streams."""

import dataclasses
import itertools

import pytest
import torch

import gradwire
import gradwire.torch
from gradwire.torch import backends
from gradwire.torch.backends import cpu, cuda
from gradwire.torch.backends.cuda import encoding, trial
from gradwire.torch.cuda import status
from tests.csrc.parts import PRESETS
from tests.gpu.place import DEVICE, EMULATED, GPU, kernels
from tests.presets.examples import made_for_kernels, names, presets
from tests.support import same_state

if not GPU:
    pytest.skip("no GPU here", allow_module_level=True)

KERNELS = kernels()
N = 5_003 if EMULATED else 100_003
needs_kernels = pytest.mark.skipif(not KERNELS, reason="the CUDA extension is not there")
needs_gpu = pytest.mark.skipif(EMULATED, reason="needs a GPU")
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


@pytest.fixture
def tensor():
    return torch.randn(N, generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize("by", [cpu, pytest.param(cuda, marks=needs_kernels)], ids=["cpu", "cuda"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("preset", presets, ids=names)
def test_frames_and_states_are_those_of_the_cpu(preset, dtype, by, tensor):
    x = tensor.to(dtype)
    there, codec = x.to(DEVICE), made_for_kernels(preset, x.shape)
    states = [each.init_state(codec, N, "w", 3) for each in (by, cpu)]
    out, total = torch.zeros(N, device=DEVICE), torch.zeros(N)
    for step in range(4):
        frame = gradwire.torch.encode(codec, there, states[0])
        assert bytes(frame) == bytes(cpu.encode(codec, x, states[1], None))
        gradwire.torch.decode_add(frame, out, 0.5)
        cpu.decode_add(frame, total, 0.5)
        if step == 2:
            for state in states:
                state.rollback()
        assert same_state(states[0].state_dict(), states[1].state_dict())
    assert torch.equal(out.cpu(), total)
    decoded = gradwire.torch.decode(frame, torch.empty(N, device=DEVICE))
    assert torch.equal(decoded.cpu(), cpu.decode(frame, None, None))


@needs_kernels
def test_every_gpu_passes_its_trial():
    places = ["cpu"] if EMULATED else [f"cuda:{i}" for i in range(torch.cuda.device_count())]
    for place in places:
        found = trial.run(torch.device(place), whole=True)
        print(found)
        assert found.failure is None


@needs_kernels
def test_kernels_write_a_bucket_of_all_presets_as_the_cpu_does():
    numels = [1 + 601 * i % 5000 for i in range(len(PRESETS))]
    pairs = zip(PRESETS.values(), numels, strict=True)
    codecs = [made_for_kernels(preset, (n,)) for preset, n in pairs]
    between = list(itertools.accumulate(numels, initial=0))
    ends = [end for pair in itertools.pairwise(between) for end in pair]
    flat = torch.randn(between[-1], generator=torch.Generator().manual_seed(5))
    here, there = (
        [each.init_state(codec, n, "w", 3) for codec, n in zip(codecs, numels, strict=True)]
        for each in (cpu, cuda)
    )
    limits = [codec.max_encoded_len(n) for codec, n in zip(codecs, numels, strict=True)]
    out = torch.empty(sum(limits) + 16 * len(limits), dtype=torch.uint8, device=DEVICE)
    for _ in range(3):
        rows = encoding.encode(codecs, there, ends, limits, flat.to(DEVICE), 1.0, out)
        frames = [
            bytes(cpu.encode(codec, flat[begin:end], state, None))
            for codec, state, (begin, end) in zip(
                codecs, here, itertools.pairwise(between), strict=True
            )
        ]
        assert out[: rows[:, 0].sum()].cpu().numpy().tobytes() == b"".join(frames)


@needs_kernels
@pytest.mark.parametrize("indices", ["elias-fano", "rice", "bitmap"])
def test_kernels_refuse_hostile_frames_and_write_nothing(indices, tensor):
    codec = dataclasses.replace(gradwire.topk(0.01), indices=indices)
    frame = bytes(cpu.encode(codec, tensor, codec.init_state(N), None))
    out = torch.full((N,), 7.0, device=DEVICE)
    for at in range(0, len(frame), 1 + len(frame) // 40):
        flipped = bytearray(frame)
        flipped[at] ^= 1 << at % 8
        for hostile in (flipped, frame[:at]):
            there = torch.frombuffer(bytearray(hostile) or bytearray(1), dtype=torch.uint8).to(
                DEVICE
            )
            with pytest.raises(gradwire.GradwireError):
                gradwire.torch.decode(there, out)
    assert bool((out == 7).all())


@needs_gpu
def test_a_tensor_and_its_frame_may_lie_on_either_side(tensor):
    codec = gradwire.topk(0.01)
    frame = gradwire.torch.encode(codec, tensor, codec.init_state(N))
    there = torch.frombuffer(bytearray(frame), dtype=torch.uint8).to(DEVICE)
    for data, device in ((there, "cpu"), (there.cpu(), "cuda")):
        out = torch.empty(N, device=device)
        assert torch.equal(gradwire.torch.decode(data, out).cpu(), gradwire.torch.decode(frame))
    made_there = backends.backend_for(there).init_state(codec, N, "w", 0)
    out = torch.empty(frame.nbytes, dtype=torch.uint8, device=DEVICE)
    assert gradwire.torch.encode_into(codec, tensor, made_there, out) == frame.nbytes
    assert out.cpu().numpy().tobytes() == bytes(frame)


@needs_gpu
def test_frames_may_lie_there(tensor):
    codec = gradwire.topk(0.01)
    frame = gradwire.torch.encode(codec, tensor, codec.init_state(N))
    out = torch.zeros(4 * N, dtype=torch.uint8, device=DEVICE)
    written = gradwire.torch.encode_into(codec, tensor.cuda(), codec.init_state(N), out)
    assert out[:written].cpu().numpy().tobytes() == bytes(frame)
    assert not out[written:].any()
    decoded = gradwire.torch.decode(out[:written])
    assert decoded.is_cuda
    assert torch.equal(decoded.cpu(), cpu.decode(frame, None, None))
    assert torch.equal(torch.ops.gradwire.decode(out[:written], N), decoded)


@needs_gpu
def test_calls_keep_to_the_order_of_the_current_stream(tensor):
    codec = gradwire.topk(0.01)
    expected = gradwire.torch.encode(codec, tensor, codec.init_state(N))
    source, stream = tensor.cuda(), torch.cuda.Stream()
    torch.cuda.synchronize()
    for _ in range(20):
        with torch.cuda.stream(stream):
            x = torch.zeros(N, device=DEVICE)
            torch.cuda._sleep(2_000_000)
            x.copy_(source)
            state = backends.backend_for(x).init_state(codec, N, "w", 0)
            frame = gradwire.torch.encode(codec, x, state)
            gradwire.torch.decode(frame, x)
            doubled = 2 * x
        assert frame == expected
        stream.synchronize()
        assert torch.equal(doubled.cpu(), 2 * gradwire.torch.decode(expected))


def test_what_is_not_finite_is_named(tensor):
    codec = gradwire.topk(0.01)
    state = codec.init_state(N, name="w")
    tensor[[7, 9]] = torch.inf
    with pytest.raises(gradwire.NonFiniteError) as caught:
        gradwire.torch.encode(codec, tensor.to(DEVICE), state)
    assert (caught.value.count, caught.value.first, caught.value.name) == (2, 7, "w")
    assert state.step == 0


@needs_gpu
def test_it_is_said_which_backend_is_used():
    there = status().library is not None
    assert gradwire.torch.backend("cuda").name == ("cuda" if there else "host")
