"""Libraries, devices and processes that are not as they should be: a typed error, or the host."""

import os
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import gradwire
import gradwire.torch
from gradwire.errors import DeviceError, ExtensionError
from gradwire.torch import backends
from gradwire.torch.backends import cpu, cuda, dispatch, host, staging
from gradwire.torch.backends.cuda import operators, trial
from gradwire.torch.backends.cuda.trial import cases
from gradwire.torch.cuda import build, library
from gradwire.torch.engine import consensus
from tests.csrc.emulated.operators import emulate
from tests.presets.examples import gradient
from tests.support import run_python, same_state

CPU, GPU = torch.device("cpu"), torch.device("cuda:0")
LAUNCH = "CUDA error: unspecified launch failure\nCUDA kernel errors might be reported later"
LIBRARY = b"\x7fELF" + bytes(range(256)) * 40
"""In place of a library: what is looked at is what comes before the system's loader."""
N = 700


@pytest.fixture
def named(monkeypatch, tmp_path):
    """Put bytes where the library is, which nobody may load; the file."""
    path = tmp_path / build.NAME
    monkeypatch.setenv("GRADWIRE_CUDA_LIBRARY", str(path))
    monkeypatch.setattr(torch.ops, "load_library", lambda path: pytest.fail(f"loaded: {path}"))
    for each in (library._load_library, dispatch._extension):
        each.cache_clear()
    yield path
    dispatch._extension.cache_clear()


@pytest.fixture
def lost(monkeypatch):
    """Have the CPU, where emulated kernels run, stand for a device that is lost once told so."""
    emulate()
    found = SimpleNamespace(yet=False)
    monkeypatch.setattr(staging, "is_lost", lambda device: found.yet)
    monkeypatch.setattr(trial, "is_lost", lambda device: found.yet)
    return found


@pytest.fixture
def plant(monkeypatch):
    """Have an operator raise an error of CUDA."""

    def put(name, text=LAUNCH):
        def fault(*given):
            raise RuntimeError(text)

        real = operators.operators()

        class Planted:
            def __getattr__(self, other):
                return fault if other == name else getattr(real, other)

        monkeypatch.setattr(torch.ops, "planted", Planted(), raising=False)
        monkeypatch.setattr(operators, "_library", "planted")

    return put


class TestLibraries:
    @pytest.mark.parametrize("left", [0, 3, 4000, len(LIBRARY), -1])
    def test_one_that_is_cut_off_is_never_mapped(self, named, left):
        named.write_bytes(build.sealed(LIBRARY)[:left])
        with pytest.raises(ExtensionError, match=r"was not loaded: it is damaged.*build_cuda\(\)"):
            gradwire.torch.cuda.load()
        used = gradwire.torch.backend("cuda")
        assert used.name == "host"
        assert "it is damaged" in used.reason

    def test_one_with_another_byte_is_refused(self, named):
        sealed = bytearray(build.sealed(LIBRARY))
        sealed[1000] ^= 1
        named.write_bytes(sealed)
        with pytest.raises(ExtensionError, match="its bytes differ from those that were built"):
            gradwire.torch.cuda.load()

    def test_one_of_other_sources_is_refused(self, named, monkeypatch):
        with monkeypatch.context() as patched:
            patched.setattr(build, "sources", lambda: "0" * 64)
            named.write_bytes(build.sealed(LIBRARY))
        with pytest.raises(ExtensionError, match="from the sources of another gradwire than this"):
            gradwire.torch.cuda.load()

    def test_a_seal_does_not_make_a_library(self, named, monkeypatch):
        monkeypatch.undo()
        monkeypatch.setenv("GRADWIRE_CUDA_LIBRARY", str(named))
        named.write_bytes(build.sealed(LIBRARY))
        with pytest.raises(ExtensionError, match="cannot be loaded by torch"):
            gradwire.torch.cuda.load()

    def test_a_damaged_one_in_the_cache_is_built_again(self, monkeypatch, tmp_path):
        monkeypatch.setattr(build, "_compile", lambda *_: [])
        monkeypatch.setattr(build, "_link", lambda *told: told[-1].write_bytes(LIBRARY))
        monkeypatch.setattr(build, "find_toolkit", lambda: build.Toolkit(tmp_path / "nvcc"))
        monkeypatch.setattr(build.Toolkit, "version", lambda self: "any")
        (tmp_path / "torch" / "lib").mkdir(parents=True)
        (tmp_path / "torch" / "lib" / "libtorch_cuda.so").write_bytes(b"")
        monkeypatch.setattr(torch, "__file__", str(tmp_path / "torch" / "__init__.py"))
        made = build.build_cuda(architectures=["90"], folder=tmp_path)
        assert build.broken_seal(made.read_bytes()) is None
        made.write_bytes(made.read_bytes()[:-1])
        assert build.build_cuda(architectures=["90"], folder=tmp_path) == made
        assert build.broken_seal(made.read_bytes()) is None


class TestDevices:
    def test_one_that_the_library_has_no_code_for_goes_by_the_host(self, lost, plant, monkeypatch):
        plant("probe", "CUDA error: no kernel image is available for execution on the device\n...")
        monkeypatch.setattr(dispatch, "_extension", lambda: (True, "built from source"))
        for each in ("_choices", "_hangs"):
            monkeypatch.setattr(dispatch, each, {})
        taken, why = dispatch._kernels(CPU)
        assert not taken
        assert "does not run the kernels" in why
        assert "no kernel image is available for execution on the device)" in why

    def test_where_one_of_two_kinds_has_no_kernels_both_go_by_the_host(self, monkeypatch):
        found = {
            "cuda:0": backends.BackendInUse("cuda", "CUDA kernels encode in place"),
            "cuda:1": backends.BackendInUse("host", "cuda:1 does not run the kernels"),
        }
        monkeypatch.setattr(backends, "in_use", lambda device: found[str(device)])
        monkeypatch.setattr(backends, "preload", lambda tensors: None)
        for each, empty in (("_choices", {}), ("_warned", set())):
            monkeypatch.setattr(dispatch, each, empty)
        channel = SimpleNamespace(all_gather_object=lambda own: [own])
        tensors = [SimpleNamespace(device=torch.device(each)) for each in found]
        agreed = consensus.Devices(tensors)
        agreed.agree(channel)
        with pytest.warns(RuntimeWarning, match="cuda:1 does not run the kernels") as said:
            agreed.warn_of_copies({})
        assert len(said) == 1
        taken, why = dispatch._choices[torch.device("cuda:0")]
        assert not taken
        assert why == "as on rank 0, where cuda:1 does not run the kernels"

    @pytest.mark.parametrize("is_lost", [False, True])
    def test_an_encode_that_fails_leaves_its_state(self, lost, plant, monkeypatch, is_lost):
        codec = gradwire.topk(0.05)
        states = [each.init_state(codec, N, "w", 3) for each in (cuda, cpu)]
        x = [torch.from_numpy(gradient(N, seed)) for seed in range(2)]
        for each, state in zip((cuda, cpu), states, strict=True):
            each.encode(codec, x[0], state, None)
        library = operators._library
        plant("encode_bucket")
        lost.yet = is_lost
        with pytest.raises(RuntimeError, match="unspecified launch failure") as caught:
            cuda.encode(codec, x[1], states[0], None)
        assert isinstance(caught.value, DeviceError) is is_lost
        if is_lost:
            assert "cpu is lost to this process (CUDA error: unspecified" in str(caught.value)
            assert "\n" not in str(caught.value)
        monkeypatch.setattr(operators, "_library", library)
        lost.yet = False
        assert same_state(states[0].state_dict(), states[1].state_dict())
        one, other = (
            bytes(each.encode(codec, x[1], state, None))
            for each, state in zip((cuda, cpu), states, strict=True)
        )
        assert one == other

    @pytest.mark.parametrize("name", ["decode_bucket", "rollback_bucket"])
    def test_every_call_of_a_lost_device_says_so(self, lost, plant, name):
        codec = gradwire.topk(0.05)
        state, x = cuda.init_state(codec, N, "w", 3), torch.from_numpy(gradient(N))
        frame = cuda.encode(codec, x, state, None)
        calls = {
            "decode_bucket": lambda: cuda.decode(frame, torch.zeros(N), None),
            "rollback_bucket": state.rollback,
        }
        plant(name)
        lost.yet = True
        with pytest.raises(DeviceError, match="restart from a checkpoint"):
            calls[name]()

    def test_copies_of_a_lost_device_say_so(self, lost, monkeypatch):
        def fault(self, tensor):
            raise RuntimeError(LAUNCH)

        monkeypatch.setattr(staging.Staging, "_copy", fault)
        codec = gradwire.topk(0.05)
        for expected in (RuntimeError, DeviceError):
            with pytest.raises(RuntimeError, match="unspecified launch failure") as caught:
                host.encode(codec, torch.ones(N), codec.init_state(N), None)
            assert type(caught.value) is expected
            lost.yet = True

    def test_a_context_that_is_spoiled_before_the_first_use_is_no_reason_for_the_host(
        self, lost, plant, monkeypatch
    ):
        monkeypatch.setattr(dispatch, "_extension", lambda: (True, "built from source"))
        for each in ("_choices", "_hangs"):
            monkeypatch.setattr(dispatch, each, {})
        plant("probe")
        lost.yet = True
        for _ in range(2):
            with pytest.raises(DeviceError, match="unspecified launch failure"):
                dispatch._kernels(CPU)

    def test_kernels_that_spoil_the_context_in_their_trial_are_an_error(
        self, lost, plant, monkeypatch
    ):
        few = [each._replace(numel=min(each.numel, 300)) for each in cases()[:2]]
        monkeypatch.setattr(trial, "cases", lambda: few)
        plant("encode_bucket")
        assert "unspecified launch failure" in trial.run(CPU).failure
        lost.yet = True
        with pytest.raises(DeviceError, match=r"after the trial .*GRADWIRE_CUDA_LIBRARY=none"):
            trial.run(CPU)

    def test_is_lost_asks_the_stream_and_waits_for_nothing(self, monkeypatch):
        asked = []

        class Stream:
            def query(self):
                asked.append(True)
                if len(asked) == 2:
                    raise RuntimeError(LAUNCH)
                return False

        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream())
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
        assert [staging.is_lost(GPU), staging.is_lost(GPU)] == [False, True]
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        assert not staging.is_lost(GPU)
        assert len(asked) == 2
        assert not staging.is_lost(CPU)


class TestProcesses:
    def test_a_child_of_a_process_that_used_cuda_is_told_so(self, monkeypatch):
        # As torch has it in a child, once CUDA has begun in the parent.
        monkeypatch.setattr(dispatch, "_choices", {GPU: (True, "tried in the parent")})
        assert dispatch._kernels(GPU) == (True, "tried in the parent")
        child = os.fork()
        if child == 0:
            status = 1
            try:
                torch.cuda._is_in_bad_fork = lambda: True
                for ask in (dispatch._kernels, gradwire.torch.backend):
                    with pytest.raises(DeviceError, match=r"forked from one that uses.*spawn"):
                        ask(GPU)
                codec, x = gradwire.topk(0.05), np.ones(N, np.float32)
                codec.encode(x, codec.init_state(N))  # what needs no GPU goes on
                status = 0
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

    def test_without_visible_devices_the_cpu_is_used_and_a_trial_is_refused(self, monkeypatch):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
        run_python(
            """
            import torch, gradwire, gradwire.torch
            from unittest.mock import patch
            from gradwire.torch.backends import dispatch
            from gradwire.torch.cuda import library
            with patch.object(dispatch, "_extension", lambda: (True, "built from source")):
                used = gradwire.torch.backend("cuda")
            assert used.reason.endswith("CUDA_VISIBLE_DEVICES hides all GPUs here"), used
            assert gradwire.torch.backend("cpu").name == "cpu"
            with patch.object(library, "load"):
                for device in ("cuda", "cuda:3", 0):
                    try:
                        gradwire.torch.cuda.trial(device)
                    except gradwire.errors.ExtensionError as error:
                        assert "torch sees 0 GPU(s), with CUDA_VISIBLE_DEVICES=''" in str(error)
                    else:
                        raise AssertionError(device)
            """
        )
