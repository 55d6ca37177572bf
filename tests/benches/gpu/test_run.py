"""A whole run of the GPU benchmark over emulated kernels, before one on a rented device."""

import subprocess
import sys

import pytest
import torch.distributed as dist

from benches.compare.contestants import PEERS, HalfHook
from benches.gpu import __main__ as command
from benches.gpu import measure
from benches.harness import pages, results
from gradwire.presets import PRESETS
from tests.csrc.emulated.operators import emulate
from tests.gpu.emulated import BENCH

pytestmark = pytest.mark.full  # runs a whole benchmark

NUMEL = BENCH.numel


@pytest.fixture(scope="module", autouse=True)
def emulated():
    emulate()
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.fixture(scope="module")
def setup():
    return BENCH


@pytest.fixture(scope="module")
def written(setup, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    return command.measure(setup, list(measure.SECTIONS), folder / "run.json")


def test_nothing_fails_and_everyone_was_timed(written):
    path, document = written
    assert document["failed"] == {}
    assert results.read(path) == document
    names = {
        section: [row["name"] for row in found["rows"]]
        for section, found in document["sections"].items()
    }
    by_host = {"gaussiank", "redsync", "adacomp", "adaptive", "muon"}
    assert names["presets"] == [name for name in PRESETS if name not in by_host]
    assert names["aims"] == [kind.name for kind in (*measure.AIMS, *PEERS)]
    assert {"1 frame", "8 frames", "torch index_add"} == set(names["receive"])
    for found in document["sections"].values():
        assert all(row["seconds"] > 0 for row in found["rows"])


def test_other_bytes_than_the_cores_are_noticed(setup, monkeypatch):
    kind = next(iter(measure.AIMS))
    monkeypatch.setattr(kind, "frame", lambda self, wire: b"another frame")
    failed = {}
    found = measure.race(setup, [kind], measure.steps(setup, 400), print, failed)
    assert found["rows"] == []
    assert failed["topk"].startswith("WrongBytesError: gradwire.Codec(")


def test_who_fails_is_written_down_and_the_others_go_on(setup):
    class Broken(HalfHook):
        name = "broken"

        def __init__(self, *given):
            raise RuntimeError("out of memory")

    failed = {}
    kinds = [Broken, HalfHook]
    found = measure.race(setup, kinds, measure.steps(setup, 400), print, failed)
    assert [row["name"] for row in found["rows"]] == [HalfHook.name]
    assert failed == {"broken": "RuntimeError: out of memory"}


def test_it_takes_no_more_than_torch_and_numpy():
    # A GPU may be in a place where nothing can be installed.
    program = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("pandas", "matplotlib", "sklearn", "scipy"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Missing())
import benches.gpu.__main__
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=pages.ROOT, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
