"""`make test-gpu`, with tools that only pretend: nothing here needs a GPU."""

import json
import sys
from pathlib import Path

import pytest
import torch

from scripts import test_gpu

pytestmark = pytest.mark.usefixtures("apart")

TOOL = """#!/bin/sh
echo "$@" > {log}
while [ "${{1#--}}" != "$1" ]; do shift 2; done
exec "$@"
"""


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "path", [str(tmp_path / "packages")])


def tool(folder: Path, log: Path) -> Path:
    folder.mkdir(parents=True)
    path = folder / test_gpu.SANITIZER
    path.write_text(TOOL.format(log=log))
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("place", ["path", "toolkit", "wheel"])
def test_the_sanitizer_is_found(
    place: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if Path("/usr/local/cuda/bin", test_gpu.SANITIZER).exists() and place == "wheel":
        pytest.skip("that of the machine comes first")
    folder = {
        "path": tmp_path / "bin",
        "toolkit": tmp_path / "cuda" / "bin",
        "wheel": tmp_path / "packages" / "nvidia" / "cu13" / "bin",
    }[place]
    made = tool(folder, tmp_path / "log")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    assert test_gpu.find_sanitizer() == made


def test_each_tool_runs_a_share_of_the_tests_and_what_came_of_it_is_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = tool(tmp_path / "bin", tmp_path / "log")
    monkeypatch.setattr(test_gpu, "find_sanitizer", lambda: made)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    program = "import os; print(os.environ['GRADWIRE_TEST_SANITIZED']); raise SystemExit({})"
    for status, passed in ((0, True), (test_gpu.FOUND, False)):
        monkeypatch.setattr(test_gpu, "PYTEST", ("-c", program.format(status)))
        run = test_gpu.Run(tmp_path / "out", {"machine": "none"})
        assert list(test_gpu.sanitized(run, ["racecheck"])) == [passed]
        said = (tmp_path / "log").read_text()
        assert "--tool racecheck --error-exitcode 86" in said
        assert "--kernel-name kns=gradwire" in said
        assert said.split()[-3:] == list(test_gpu.SHARE)
        assert (tmp_path / "out" / "racecheck.txt").read_text() == "1\n"
        record = json.loads((tmp_path / "out" / "test-gpu.json").read_text())
        (entry,) = record["commands"]
        assert (entry["name"], entry["status"], entry["last"]) == ("racecheck", status, "1")


def test_it_is_said_where_the_sanitizer_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(test_gpu, "find_sanitizer", lambda: None)
    run = test_gpu.Run(tmp_path, {})
    assert list(test_gpu.sanitized(run, [])) == [False]
    assert test_gpu.WHEEL in capsys.readouterr().err
    assert test_gpu.WHEEL in (tmp_path / "test-gpu.json").read_text()


def test_without_a_gpu_nothing_is_tested(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(test_gpu, "NEEDED", ())
    assert test_gpu.main([]) == 2
    assert "no GPU here: nothing was tested" in capsys.readouterr().err


def test_without_a_choice_the_tests_run_and_then_all_sanitizers() -> None:
    assert vars(test_gpu.arguments([])) | {"out": None} == {
        "tests": True, "sanitize": [], "soak": None, "out": None, "pytest": [],
    }  # fmt: skip
    assert test_gpu.arguments(["--soak", "2", "--", "-k", "x"]).pytest == ["-k", "x"]
    assert not test_gpu.arguments(["--sanitize", "memcheck"]).tests
