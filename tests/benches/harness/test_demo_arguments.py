"""The command line of ``make demo``."""

import subprocess
import sys

import pytest

from benches.demo import __main__ as demo
from benches.harness import command
from benches.harness.processes import ROOT


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--ratio", "0"], "'0' is not a ratio"),
        (["--ratio", "1.5"], "'1.5' is not a ratio"),
        (["--ratio", "nan"], "'nan' is not a ratio"),
        (["--bandwidth", "fast"], "'fast' is not a bandwidth"),
        (["--bandwidth", "0mbit"], "'0mbit' is not a bandwidth"),
        (["--ranks", "1"], "'1' is not an integer from 2"),
        (["--steps", "1"], "'1' is not an integer from 2"),
        (["--steps", "many"], "'many' is not an integer"),
        (["--learning-rate", "0"], "'0' is not a learning rate: give a number above 0"),
        (["--learning-rate", "inf"], "'inf' is not a learning rate"),
        (["--task", "digits,cats"], "'digits,cats' is not a list of tasks"),
        (["--codec", "zip"], "unknown codec 'zip'; choose from adam"),
        (["--codec", "threshold"], "threshold needs threshold, which has no option here"),
    ],
)
def test_a_wrong_argument_is_named_with_what_would_be_right(arguments, complaint, capsys):
    with pytest.raises(SystemExit) as stop:
        demo.main(arguments)
    assert stop.value.code == 2
    assert complaint in capsys.readouterr().err


def test_without_the_extra_it_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setattr(command, "_missing", lambda: ["torch", "rich"])
    assert demo.main([]) == 2
    assert capsys.readouterr().err == ("make demo needs torch, rich: pip install torch rich\n")


def test_help_needs_none_of_the_extras():
    heavy = ("torch", "rich", "matplotlib", "sklearn")
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({heavy!r}))\n"
        "from benches.demo.__main__ import main; main(['--help'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    for option in (
        "--codec",
        "--ratio",
        "--bandwidth",
        "--ranks",
        "--steps",
        "--learning-rate",
        "--out",
        "--json",
    ):
        assert option in done.stdout
