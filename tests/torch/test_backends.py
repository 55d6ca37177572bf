"""Backends: which is used where, and that all give the same."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import gradwire
import gradwire.torch
from gradwire.memory import NoMemory
from gradwire.torch.backends import Bucket, cpu, cuda, dispatch, host
from gradwire.torch.backends.cuda import operators, trial
from gradwire.torch.backends.cuda.trial import Trial, TrialRow
from gradwire.torch.cuda import Status, library
from tests.presets.examples import made, names, presets
from tests.support import same_state

ROOT = Path(__file__).parents[2]
N = 3000
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


@pytest.fixture
def tensor():
    return torch.randn(N, generator=torch.Generator().manual_seed(5))


@pytest.fixture
def no_extension(monkeypatch, tmp_path):
    monkeypatch.delenv("GRADWIRE_CUDA_LIBRARY", raising=False)
    monkeypatch.setenv("GRADWIRE_CACHE", str(tmp_path))
    monkeypatch.setitem(sys.modules, "gradwire_cuda", None)
    _forget()
    yield
    _forget()


def _forget():
    dispatch._extension.cache_clear()
    for each in (dispatch._choices, dispatch._hangs, dispatch._warned):
        each.clear()


def _use_cuda(monkeypatch, captures=bool):
    """As in a process that uses CUDA."""
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", captures)


@pytest.mark.usefixtures("no_extension")
class TestChoice:
    @pytest.mark.parametrize(
        ("device", "name", "reason"),
        [
            ("cpu", "cpu", "read and written in place"),
            ("cuda", "host", "the CUDA extension is not installed: build it"),
            (torch.device("cuda", 3), "host", "copied to the host"),
            ("xpu", "host", "no backend for xpu"),
            ("mps", "host", "no backend for mps"),
        ],
    )
    def test_says_which_backend_is_used_and_why(self, device, name, reason):
        chosen = gradwire.torch.backend(device)
        assert chosen.name == name
        assert reason in chosen.reason
        with pytest.raises(dataclasses.FrozenInstanceError):
            chosen.name = "other"

    def test_names_rocm_for_what_it_is(self, monkeypatch):
        monkeypatch.setattr(torch.version, "hip", "6.4")
        assert "no backend for cuda by ROCm" in gradwire.torch.backend("cuda").reason

    def test_kernels_encode_once_the_extension_is_there(self, monkeypatch):
        assert gradwire.torch.backend("cuda").name == "host"
        found = Status(Path("library.so"), "built from source")
        monkeypatch.setattr(library, "load", lambda: found)
        chosen = gradwire.torch.backend("cuda:1")
        assert (chosen.name, chosen.reason) == (
            "cuda",
            "CUDA kernels encode in place: built from source",
        )
        assert gradwire.torch.backend("xpu").name == "host"

    def test_a_device_that_does_not_run_the_kernels_goes_by_the_host(self, monkeypatch):
        tried = []

        def hindrance(device):
            tried.append(device.index)
            return "gradwire: CUDA says: no kernel image" if device.index == 1 else None

        found = Status(Path("library.so"), "built from source")
        monkeypatch.setattr(library, "load", lambda: found)
        monkeypatch.setattr(operators, "hindrance", hindrance)
        monkeypatch.setenv("GRADWIRE_CUDA_TRIAL", "0")
        assert gradwire.torch.backend("cuda:1").name == "cuda"
        assert tried == []  # a process that does not use CUDA is not made to
        _use_cuda(monkeypatch)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        assert gradwire.torch.backend("cuda").name == "cuda"
        for _ in range(2):
            chosen = gradwire.torch.backend("cuda:1")
            assert chosen.name == "host"
            assert "cuda:1 does not run the kernels" in chosen.reason
            assert "no kernel image" in chosen.reason
        assert tried == [0, 1]

    def test_a_device_is_tried_once_unless_that_is_off_or_a_stream_is_captured(self, monkeypatch):
        tried, capturing = [], [True]

        def run(device):
            tried.append(device.index)
            rows = (TrialRow("topk(ratio=0.01)", 2, "float32", "another frame"),)
            return Trial(str(device), rows if device.index == 1 else ())

        monkeypatch.setattr(library, "load", lambda: Status(Path("library.so"), "built"))
        monkeypatch.setattr(operators, "hindrance", lambda device: None)
        monkeypatch.setattr(trial, "run", run)
        assert gradwire.torch.backend("cuda:1").name == "cuda"
        assert tried == []  # a process that does not use CUDA is not made to
        _use_cuda(monkeypatch, lambda: capturing[0])
        assert gradwire.torch.backend("cuda:1").name == "cuda"
        assert tried == []
        capturing[0] = False
        with pytest.warns(RuntimeWarning, match="report") as caught:
            chosen = gradwire.torch.backend("cuda:1")
        assert len(caught) == 1
        assert chosen.name == "host"
        for text in (chosen.reason, str(caught[0].message)):
            assert "another frame for topk(ratio=0.01), step 2, float32" in text
        for index in (1, 0, 0):
            assert gradwire.torch.backend(f"cuda:{index}").name == ("host" if index else "cuda")
        assert tried == [1, 0]
        monkeypatch.setenv("GRADWIRE_CUDA_TRIAL", "0")
        _forget()
        assert gradwire.torch.backend("cuda:1").name == "cuda"
        assert tried == [1, 0]

    def test_a_device_that_hangs_is_not_tried_again(self, monkeypatch):
        tried = []

        def run(device):
            tried.append(device)
            raise gradwire.errors.ExtensionError(f"{device} hangs")

        monkeypatch.setattr(library, "load", lambda: Status(Path("library.so"), "built"))
        monkeypatch.setattr(operators, "hindrance", lambda device: None)
        monkeypatch.setattr(trial, "run", run)
        _use_cuda(monkeypatch)
        for _ in range(2):
            with pytest.raises(gradwire.errors.ExtensionError, match="cuda:3 hangs"):
                gradwire.torch.backend("cuda:3")
        assert len(tried) == 1

    def test_there_is_nothing_to_encode_without_values(self):
        with pytest.raises(ValueError, match="no values"):
            gradwire.torch.backend("meta")

    def test_every_backend_has_the_same_functions(self):
        functions = {each for each in vars(dispatch.Backend) if not each.startswith("_")}
        assert {"encode", "decode_add", "init_state", "rollback", "bucket"} <= functions
        for each in (cpu, cuda, host):
            assert {*functions, "name", "waits", "can_stay_on_device", "values_stay"} <= {
                *vars(each)
            }
            assert each.name == each.__name__.rpartition(".")[2]
            assert issubclass(type(each.bucket(torch.zeros(3))), Bucket)


@pytest.mark.parametrize("make", [cpu.bucket, host.bucket, lambda x: host.bucket(x, True)])
def test_values_of_a_bucket_go_out_and_come_back_where_they_are_asked_from(make):
    bucket = make(torch.arange(8.0))
    out = torch.empty(5)
    assert bucket.pack([(0, 2), (5, 8)], out)
    assert out.tolist() == [0, 1, 5, 6, 7]
    assert bucket.pack([], out[:0]), "a rank may have no share of a bucket"
    bucket.unpack([(0, 2), (5, 8)], 2 * out)
    bucket.unpack([], out[:0])
    bucket.store()
    assert bucket.buffer.tolist() == [0, 2, 2, 3, 4, 10, 12, 14]
    bucket.values[0] = torch.inf
    assert not bucket.pack([(0, 1)], out[:1])


class TestHost:
    """The staged path over CPU tensors, beside the one in place."""

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    @pytest.mark.parametrize("preset", presets, ids=names)
    def test_gives_the_same_frames_and_states(self, preset, dtype, tensor):
        x = tensor.to(dtype)
        codec = made(preset, x.shape)
        states = codec.init_state(N), codec.init_state(N)
        for _ in range(2):
            frame, expected = (
                each.encode(codec, x, state, None)
                for each, state in zip((host, cpu), states, strict=True)
            )
            assert bytes(frame) == bytes(expected)
        assert same_state(states[0].state_dict(), states[1].state_dict())

    def test_writes_what_is_written_in_place(self, tensor):
        codec = gradwire.topk(0.5)
        outs = torch.full((2, 700), 9, dtype=torch.uint8)
        one, other = (
            each.encode_into(codec, tensor, codec.init_state(N), out, 600)
            for each, out in zip((host, cpu), outs, strict=True)
        )
        assert one == other <= 600
        assert torch.equal(*outs)
        assert (outs[0, one:] == 9).all()
        frame = outs[0, :one]
        decoded = host.decode(frame, None, None)
        assert torch.equal(decoded, cpu.decode(frame, None, None))
        into = tensor.reshape(30, 100).clone()
        assert host.decode(frame, into, N) is into
        assert torch.equal(into.flatten(), decoded)
        sums = tensor.clone(), tensor.clone()
        for each, total in zip((host, cpu), sums, strict=True):
            each.decode_add(frame, total, 0.5)
        assert torch.equal(*sums)

    def test_what_fails_changes_nothing(self, tensor):
        codec = gradwire.topk(0.05)
        state = codec.init_state(N, name="w")
        out = torch.zeros(4000, dtype=torch.uint8)
        bad = tensor.clone()
        bad[[3, 9]] = torch.nan
        with pytest.raises(gradwire.NonFiniteError, match="w"):
            host.encode_into(codec, bad, state, out, None)
        with pytest.raises(ValueError, match="contiguous"):
            host.encode(codec, tensor[::2], state, None)
        with pytest.raises(TypeError, match="float32"):
            host.encode(codec, tensor.int(), state, None)
        view = tensor.view(torch.uint8)
        with pytest.raises(ValueError, match="out shares memory with x"):
            host.encode_into(codec, tensor, state, view[-8:], None)
        assert state.step == 0
        assert not out.any()
        before = tensor.clone()
        frame = bytearray(bytes(host.encode(codec, tensor, state, None)))
        frame[40] ^= 1
        for call in (lambda: host.decode(frame, tensor, None), lambda: add(frame, tensor)):
            with pytest.raises(gradwire.CorruptFrameError):
                call()
        assert torch.equal(tensor, before)

    def test_a_copy_that_is_interrupted_loses_no_frame(self, tensor, monkeypatch):
        codec = gradwire.topk(0.05)
        states, outs = [codec.init_state(N) for _ in range(2)], torch.zeros(2, 4000).byte()
        length = cpu.encode_into(codec, tensor, states[1], outs[1], None)
        write, raising = host._write, iter([KeyboardInterrupt, None])

        def interrupted(*given):
            if error := next(raising):
                raise error
            write(*given)

        monkeypatch.setattr(host, "_write", interrupted)
        with pytest.raises(KeyboardInterrupt) as raised:
            host.encode_into(codec, tensor, states[0], outs[0], None)
        assert not hasattr(raised.value, "nbytes")
        assert states[0].step == 0
        assert host.encode_into(codec, tensor, states[0], outs[0], None) == length
        assert torch.equal(*outs)
        assert same_state(states[0].state_dict(), states[1].state_dict())

    def test_stages_on_the_host_whatever_the_default_device_is(self, tensor):
        codec = gradwire.topk(0.05, memory=NoMemory())
        with torch.device("meta"):
            frame = host.encode(codec, tensor, None, None)
            assert torch.equal(
                host.decode(frame, tensor.clone(), None), host.decode(frame, None, None)
            )
        assert frame == cpu.encode(codec, tensor, None, None)

    def test_keeps_to_the_rules_of_autograd(self, tensor):
        frame = host.encode(gradwire.topk(0.05, memory=NoMemory()), tensor, None, None)
        out = torch.ones(N, requires_grad=True)
        with pytest.raises(ValueError, match="requires gradients"):
            host.decode(frame, out, None)
        with torch.no_grad():
            host.decode(frame, out, None)
        assert torch.equal(out.detach(), host.decode(frame, None, None))
        saved = torch.ones(N, requires_grad=True).exp()
        with torch.no_grad():
            host.decode_add(frame, saved, 1.0)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            saved.sum().backward()
        with torch.inference_mode():
            inference = torch.zeros(N)
        host.decode(frame, inference, None)
        assert inference.count_nonzero() == frame.count


def add(frame, out):
    host.decode_add(frame, out, 1.0)


@pytest.mark.full
@pytest.mark.parametrize("name", ["device", "exchange"])
def test_a_simulated_device_is_waited_for_where_it_must_be(name):
    # A process of its own: other tests must not find such a device registered.
    file = Path(__file__).parent / f"simulated_{name}.py"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(file)]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    count = {"device": 8, "exchange": 57}[name]
    assert f"{count} passed" in ended.stdout or f"{count} skipped" in ended.stdout
