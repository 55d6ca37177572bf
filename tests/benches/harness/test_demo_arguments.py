"""The command line of ``make demo``."""

import subprocess
import sys

import pytest

from benches.demo import __main__ as demo
from benches.harness import command
from benches.harness.processes import ROOT
from gradwire.cli.codecs import build, unfit
from gradwire.cli.plan.quantities import format_rate, parse_rate


def test_defaults():
    arguments = demo.parser().parse_args([])
    assert arguments.codec == ["topk", "sidco", "adam"]
    assert arguments.learning_rate is None
    assert arguments.bandwidth == [100_000_000, 1_000_000_000]
    assert arguments.ratio == 0.02
    assert (arguments.ranks, arguments.steps, arguments.task) == (2, None, ["digits", "text"])


def test_lists_are_split_at_commas():
    arguments = demo.parser().parse_args(
        ["--codec", "sidco, topk", "--bandwidth", "10mbit,2.5Gbit/s", "--task", "text"]
    )
    assert arguments.codec == ["sidco", "topk"]
    assert arguments.bandwidth == [10_000_000, 2_500_000_000]
    assert arguments.task == ["text"]


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


@pytest.mark.parametrize(
    ("text", "rate", "said"),
    [
        ("100mbit", 100_000_000, "100 Mbit/s"),
        ("1gbit", 1_000_000_000, "1 Gbit/s"),
        ("2.5Gbit/s", 2_500_000_000, "2.5 Gbit/s"),
        ("64k", 64_000, "64 kbit/s"),
        ("999600000", 999_600_000, "1 Gbit/s"),
    ],
)
def test_rates_are_read_and_written(text, rate, said):
    assert parse_rate(text) == rate
    assert format_rate(rate) == said


def test_presets_get_the_ratio_if_they_take_one():
    assert unfit("sidco") is None
    assert build("sidco", 0.02).sparsify.ratio == 0.02
    assert build("dense", 0.02) == build("dense", 0.5)
