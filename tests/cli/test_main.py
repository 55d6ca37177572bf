"""The command line as a whole: what it offers, and what each command costs to start."""

import subprocess
import sys

import pytest

import gradwire
from gradwire.cli import COMMANDS, main
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


def test_a_reader_that_goes_away_is_no_error():
    command = f"{sys.executable} -m gradwire codecs --json | head -c 1"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False
    )
    assert done.stdout == "["
    assert done.stderr == ""
