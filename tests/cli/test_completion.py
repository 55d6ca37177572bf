"""`gradwire completion`."""

import re
import shutil
import subprocess

import pytest

from gradwire.cli import COMMANDS, main
from gradwire.presets import PRESETS


def completed(script: str, *words: str) -> list[str]:
    """What bash offers for the last of these words."""
    run = 'source /dev/stdin <<< "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _gradwire'
    done = subprocess.run(
        ["bash", "-c", f'{run}; printf "%s\\n" "${{COMPREPLY[@]}}"', "bash", script, *words],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.fixture
def bash(capsys):
    assert main(["completion", "bash"]) == 0
    return capsys.readouterr().out


def test_bash_completes_commands_options_and_values(bash):
    assert set(completed(bash, "gradwire", "")) == {*COMMANDS, "--help", "--version"}
    assert completed(bash, "gradwire", "pl") == ["plan"]
    assert completed(bash, "gradwire", "plan", "--la") == ["--latency"]
    assert completed(bash, "gradwire", "codecs", "ada") == [
        each for each in PRESETS if each.startswith("ada")
    ]
    assert completed(bash, "gradwire", "plan", "--codecs", "scale") == ["scalecom"]
    assert completed(bash, "gradwire", "plan", "--codecs", "topk,scale") == ["topk,scalecom"]
    assert completed(bash, "gradwire", "plan", "--codecs", "=", "scale") == ["scalecom"]
    assert completed(bash, "gradwire", "completion", "z") == ["zsh"]
    assert completed(bash, "gradwire", "plan", "--latency", "") == []
    assert completed(bash, "gradwire", "inspect", "") == []  # bash itself takes files then
    assert completed(bash, "gradwire", "pack", "--fit", "s") == ["squares", "sawb"]


@pytest.mark.parametrize("command", ["pack", "unpack"])
def test_two_files_in_a_row_are_completed(command, bash, capsys):
    assert f"{command}:*) :; return ;;" in bash  # `:` leaves it to bash, which takes files
    assert main(["completion", "zsh"]) == 0
    zsh = capsys.readouterr().out.partition(f"    {command})\n")[2].partition(";;")[0]
    assert re.search(r"'1:a .*:_files'", zsh)
    assert re.search(r"'2:the .*:_files'", zsh)


def test_names_of_other_packages_run_nothing(capsys, monkeypatch):
    monkeypatch.setattr("gradwire.cli.completion.PRESETS", {"topk": 0, "$(touch x)'": 0})
    for shell in ("bash", "zsh", "fish"):
        assert main(["completion", shell]) == 0
        shown = capsys.readouterr().out
        assert "topk" in shown
        assert "touch" not in shown


@pytest.mark.parametrize(("shell", "check"), [("zsh", "-n"), ("fish", "--no-execute")])
def test_other_shells_have_all_words_and_read_the_script(shell, check, capsys, tmp_path):
    assert main(["completion", shell]) == 0
    shown = capsys.readouterr().out
    for word in (*COMMANDS, *PRESETS, "latency", "bash zsh fish"):
        assert word in shown
    if shutil.which(shell) is not None:
        path = tmp_path / "script"
        path.write_text(shown)
        subprocess.run([shell, check, path], check=True)
