"""The command line as a whole: what it offers, and what each command costs to start."""

import subprocess
import sys

import numpy as np
import pytest

import gradwire
from gradwire.cli import COMMANDS, main
from gradwire.cost import Calibration
from gradwire.cost.calibration import CodecCost, Line
from tests.support import run_python


def test_version(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"gradwire {gradwire.__version__}\n"


@pytest.mark.parametrize("arguments", [["--help"], ["-h"]])
def test_help_lists_the_commands(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 0
    out = capsys.readouterr().out
    for name, summary in COMMANDS.items():
        assert f"  {name} " in out
        assert summary in out


@pytest.mark.parametrize("arguments", [[], ["explode"], ["--colour"]])
def test_a_wrong_command_line_is_exit_code_2(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "usage: gradwire" in capsys.readouterr().err


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command, capsys):
    with pytest.raises(SystemExit) as caught:
        main([command, "--help"])
    assert caught.value.code == 0
    assert f"usage: gradwire {command}" in capsys.readouterr().out


def test_commands_import_what_they_need_and_no_more():
    out = run_python(
        """
        import sys
        from gradwire.cli import main
        assert main(["codecs"]) == 0
        print("torch" in sys.modules, "gradwire.cli.plan" in sys.modules)
        """
    )
    assert out.splitlines()[-1] == "False False"


def test_the_module_runs():
    done = subprocess.run(
        [sys.executable, "-m", "gradwire", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"gradwire {gradwire.__version__}\n"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A folder with a file for every command, large enough to fill a pipe where that is easy."""
    folder = tmp_path_factory.mktemp("files")
    tensors = {f"layer.{at}.weight": np.zeros((64, 64), np.float32) for at in range(2000)}
    gradwire.weights.save(folder / "many.safetensors", tensors)
    gradwire.weights.save(folder / "one.safetensors", {"w": np.ones((64, 64), np.float32)})
    (folder / "frame").write_bytes(gradwire.float8().encode(np.ones(100, np.float32)))
    line = Line(1e-6, 1e-9, 1e-9)
    cost = CodecCost(gradwire.adam(0.01), line, line, 48.0, 13.0, 0.01, 16.0)
    Calibration({"adam": cost}, 1e-10, 1e-10, 1).save(folder / "calibration.json")
    return folder


PLAN = "plan --model-size 1M --link 1gbit --backward 1s --calibration calibration.json"
PRINTING = [
    *("gradwire --help", "gradwire codecs --json", "gradwire inspect frame", f"gradwire {PLAN}"),
    *("gradwire inspect many.safetensors", "gradwire inspect many.safetensors --json"),
    "gradwire.examples --help",
    *("gradwire pack one.safetensors out.safetensors", "gradwire.examples"),
    pytest.param("gradwire info", marks=pytest.mark.full),  # imports torch
]


@pytest.mark.parametrize("command", PRINTING)
def test_a_reader_that_goes_away_is_no_error(command, files):
    told = files / "told"
    done = _end_of(f"sleep 0.2; {sys.executable} -m {command} 2>{told} | true", files)
    assert (done.returncode, told.read_text()) == (0, "")


def test_a_reader_of_both_streams_that_goes_away_sees_no_error_either(files):
    done = _end_of(f"({sys.executable} -m gradwire {PLAN} 2>&1; echo $? >code) | true", files)
    assert (done.stdout, done.stderr, (files / "code").read_text()) == ("", "", "0\n")


def test_output_that_cannot_be_written_is_an_error_in_a_line(files):
    for module, name in (
        ("gradwire codecs --json", "gradwire"),
        ("gradwire.examples", "python -m gradwire.examples"),
    ):
        done = _end_of(f"{sys.executable} -m {module} > /dev/full", files)
        assert done.returncode == 1
        assert done.stderr == f"{name}: cannot write the output: No space left on device\n"
        done = _end_of(f"{sys.executable} -m {module} >&-", files)
        assert (done.returncode, done.stderr) == (0, "")


def test_a_closed_standard_input_is_an_error_in_a_line(files):
    done = _end_of(f"{sys.executable} -m gradwire inspect - <&-", files)
    assert done.returncode == 1
    assert done.stderr == "gradwire inspect: cannot read -: standard input is closed\n"


def _end_of(command, folder):
    given = ["bash", "-c", command]
    return subprocess.run(given, cwd=folder, capture_output=True, text=True, check=False)
