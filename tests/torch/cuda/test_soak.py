"""The soak test of GPUs over emulated kernels, for a moment: its first run is not on a device."""

import json

import pytest
import torch.distributed as dist

from tests.csrc.emulated.operators import emulate
from tests.gpu import soak
from tests.gpu.emulated import SOAK as SETUP


@pytest.fixture(scope="module", autouse=True)
def emulated():
    emulate()
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def test_every_scenario_takes_its_steps(tmp_path):
    out = tmp_path / "soak.json"
    record = soak.soak(SETUP, out)
    assert json.loads(out.read_text()) == record
    steps = {name: found["steps"] for name, found in record["scenarios"].items()}
    assert steps == {
        "alone": dict.fromkeys(soak.CODECS, 4),
        "two streams": {"topk": 2, "sidco": 2},
        "beside collectives": {"sidco": 2, "reduced": 8},
        "large": dict.fromkeys(soak.CODECS, 2),
    }
    assert {found["outcome"] for found in record["scenarios"].values()} == {"passed"}


def test_other_bytes_than_the_cores_are_noticed(tmp_path, monkeypatch):
    monkeypatch.setattr(soak.cuda, "encode", lambda *_: b"another frame")
    record = soak.soak(SETUP, tmp_path / "soak.json")
    for found in record["scenarios"].values():
        assert found["outcome"].startswith("AssertionError: step 0 of ")


def test_without_a_gpu_nothing_is_run(capsys):
    if soak.torch.cuda.is_available():
        pytest.skip("there is one")
    assert soak.main([]) == 2
    assert "nothing was run" in capsys.readouterr().err
