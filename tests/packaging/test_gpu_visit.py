"""A visit to a GPU, with tools and tests that only pretend: nothing here needs a GPU."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from scripts import gpu_visit
from scripts.gpu_visit import Visit

TOOL = """#!/bin/sh
echo "$@" > {log}
while [ "${{1#--}}" != "$1" ]; do shift 2; done
exec "$@"
"""

PLANTED = """
import os, threading
from tests.gpu import place

def test_passes():
    pass

def test_hangs():
    threading.Event().wait()

def test_dies():
    os._exit(5)

def test_loses_the_device(monkeypatch):
    place.lost = lambda: "CUDA error: unspecified launch failure"
    assert False, "another frame"

def test_fails():
    assert not "planted"

def test_comes_last():
    pass
"""

HERE = {"gpu": True, "kernels": True, "reason": "emulated", "facts": {"date": "today"}}


@pytest.fixture
def visit(tmp_path: Path) -> Visit:
    made = Visit(tmp_path / "out")
    made.out.mkdir()
    made.begin()
    return made


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "path", [str(tmp_path / "packages")])


def tool(folder: Path, log: Path) -> Path:
    folder.mkdir(parents=True)
    path = folder / gpu_visit.SANITIZER
    path.write_text(TOOL.format(log=log))
    path.chmod(0o755)
    return path


@pytest.mark.full
@pytest.mark.timeout(600)
def test_a_test_that_hangs_or_dies_or_loses_the_device_ends_alone(
    visit: Visit, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "test_planted.py").write_text(PLANTED)
    monkeypatch.setattr(gpu_visit, "PYTEST", (*gpu_visit.PYTEST, "-p", "tests.gpu.conftest"))
    found = gpu_visit.run_tests(visit, "planted", [str(tmp_path / "test_planted.py")], limit=5.0)
    assert found["outcome"] == gpu_visit.FAILED
    assert found["tests"] == {"died": 1, "failed": 2, "hung": 1, "passed": 2}
    assert found["left"] == 0
    words = {each["test"].partition("::")[2]: each["words"] for each in found["failed"]}
    assert words["test_hangs"] == "no end in 5 s"
    assert words["test_dies"].startswith("its process ended with 5")
    assert "another frame" in words["test_loses_the_device"]
    assert "test_hangs" in found["stacks"]
    assert [path.name for path in visit.out.iterdir()] == ["planted.txt"]


@pytest.mark.full
def test_a_command_that_takes_too_long_is_ended_with_its_children(visit: Visit) -> None:
    child = "import time; print('child', flush=True); time.sleep(600)"
    program = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    status, said = visit.program("slow", "-c", program, seconds=15.0)
    assert status is None
    assert said.startswith("child")
    assert "Fatal Python error: Aborted" in said, "the stacks of both are there"
    assert subprocess.run(["pgrep", "-f", child], capture_output=True).returncode == 1


def test_what_is_printed_is_kept_as_far_as_there_is_room(
    visit: Visit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_visit, "KEPT", 5)
    assert visit.program("loud", "-c", "print('0123456789', end='')") == (0, "56789")
    assert (visit.out / "loud.txt").read_text() == "56789"


@pytest.mark.usefixtures("apart")
@pytest.mark.parametrize("place", ["path", "toolkit", "wheel"])
def test_the_sanitizer_is_found(
    place: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if Path("/usr/local/cuda/bin", gpu_visit.SANITIZER).exists() and place == "wheel":
        pytest.skip("that of the machine comes first")
    folder = {
        "path": tmp_path / "bin",
        "toolkit": tmp_path / "cuda" / "bin",
        "wheel": tmp_path / "packages" / "nvidia" / "cu13" / "bin",
    }[place]
    made = tool(folder, tmp_path / "log")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    assert gpu_visit.find_sanitizer() == made


def test_each_tool_runs_a_share_of_the_tests(
    visit: Visit, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = tool(tmp_path / "bin", tmp_path / "log")
    program = (
        "import json, os; print(os.environ['GRADWIRE_TEST_SANITIZED']); "
        "file = open(os.environ['GRADWIRE_TEST_JOURNAL'], 'a'); "
        "notes = {'collected': 1}, {'test': 'one', 'outcome': 'passed', 'seconds': 1.0}; "
        "file.write(''.join(json.dumps(each) + '\\n' for each in notes)); file.close(); "
    )
    monkeypatch.setattr(gpu_visit, "find_sanitizer", lambda: made)
    monkeypatch.setattr(gpu_visit, "TOUCH", "print('the device is there')")
    for status, outcome in ((0, gpu_visit.PASSED), (gpu_visit.FOUND, gpu_visit.FAILED)):
        exits = f"{program}raise SystemExit({status})"
        monkeypatch.setattr(gpu_visit, "PYTEST", ("-c", exits))
        visit.tools = ["racecheck"]
        found = gpu_visit.sanitize(visit)
        assert found["outcome"] == outcome
        said = (tmp_path / "log").read_text()
        assert "--tool racecheck --error-exitcode 86" in said
        assert "--kernel-name kns=gradwire" in said
        assert said.split()[-3:] == list(gpu_visit.SHARE)
        assert found["tools"]["racecheck"]["said"] == "1"
        assert found["tools"]["racecheck"]["tests"] == {"passed": 1}


def test_a_sanitizer_that_is_missing_or_does_not_run_is_said_and_the_visit_goes_on(
    visit: Visit, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(gpu_visit, "find_sanitizer", lambda: None)
    found = gpu_visit.sanitize(visit)
    assert found["outcome"] == gpu_visit.UNAVAILABLE
    assert gpu_visit.SANITIZER_WHEEL in found["words"]
    monkeypatch.setattr(gpu_visit, "find_sanitizer", lambda: tool(tmp_path / "bin", tmp_path / "l"))
    monkeypatch.setattr(gpu_visit, "TOUCH", "raise SystemExit('no debugger in this sandbox')")
    found = gpu_visit.sanitize(visit)
    assert found == {
        "outcome": gpu_visit.UNAVAILABLE,
        "words": "compute-sanitizer does not run here: no debugger in this sandbox",
    }
    monkeypatch.setitem(gpu_visit.STEPS, "sanitize", lambda visit: found)
    monkeypatch.setattr(gpu_visit, "look", lambda visit: HERE)
    assert gpu_visit.main(["sanitize", "--out", str(tmp_path)]) == 0
    record = json.loads((tmp_path / "sanitize.json").read_text())
    assert (record["outcome"], record["machine"]) == (gpu_visit.UNAVAILABLE, HERE)


@pytest.mark.full
def test_without_a_gpu_no_step_runs_and_the_record_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert gpu_visit.main(["tensors", "--out", str(tmp_path)]) == 1
    assert "nothing was run: no GPU here" in capsys.readouterr().err
    record = json.loads((tmp_path / "tensors.json").read_text())
    assert (record["outcome"], record["words"]) == (gpu_visit.FAILED, "no GPU here")
    assert record["machine"]["python"]


def test_a_library_without_code_for_the_gpu_is_compiled_there(
    visit: Visit, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("GRADWIRE_CUDA_LIBRARY", raising=False)
    monkeypatch.setattr(gpu_visit, "ROOT", tmp_path)
    (tmp_path / gpu_visit.NAME).write_bytes(b"")
    without = HERE | {"kernels": False, "reason": "no kernel image"}
    monkeypatch.setattr(gpu_visit, "BUILD", "print('/built/' + __import__('sys').argv[1][-4:])")

    def asked(visit: Visit) -> dict[str, object]:
        return HERE if visit.variables["GRADWIRE_CUDA_LIBRARY"] == "/built/cuda" else without

    monkeypatch.setattr(gpu_visit, "_ask", asked)
    assert gpu_visit.look(visit) == {**HERE, "build": "compiled here"}
    visit.variables.clear()
    monkeypatch.setattr(gpu_visit, "BUILD", "raise SystemExit('no CUDA compiler was found')")
    assert gpu_visit.look(visit) == {**without, "build": "no CUDA compiler was found"}


def test_the_folder_has_all_that_a_visit_takes(tmp_path: Path) -> None:
    wheel, library, folder = (tmp_path / each for each in ("g.whl", "lib.so", "visit"))
    library.write_bytes(b"library")
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("gradwire/__init__.py", "")
    folder.mkdir()
    (folder / "stale").touch()
    gpu_visit.prepare(folder, wheel, library)
    assert not (folder / "stale").exists()
    assert (folder / gpu_visit.NAME).read_bytes() == b"library"
    for each in ("python/gradwire", "tests/gpu/place.py", "benches/gpu", "scripts/gpu_visit.py"):
        assert (folder / each).exists(), each
    assert not list(folder.rglob("__pycache__"))
    assert not (folder / "benches" / "results").exists()
    done = subprocess.run(
        [sys.executable, folder / "scripts" / "gpu_visit.py", "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "sanitize: A share of the tests" in " ".join(done.stdout.split())
