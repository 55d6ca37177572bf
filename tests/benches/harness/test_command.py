"""The command line of ``make demo``, and how commands that train end when something fails."""

import subprocess
import sys
from pathlib import Path

import pytest

from benches.demo import __main__ as demo
from benches.harness import command
from benches.harness.processes import ROOT


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ("--ratio 1.5", "'1.5' is not a ratio"),
        ("--bandwidth 0mbit", "'0mbit' is not a bandwidth"),
        ("--ranks 1", "--ranks: invalid choice: 1"),
        ("--steps 1", "--steps: at least 2"),
        ("--codec zip", "unknown codec 'zip'; choose from adam"),
        ("--codec threshold", "threshold needs threshold, which has no option here"),
    ],
)
def test_a_wrong_argument_is_named_with_what_would_be_right(given, complaint, capsys):
    with pytest.raises(SystemExit) as stop:
        demo.main(given.split())
    assert stop.value.code == 2
    assert complaint in capsys.readouterr().err


def test_what_is_not_installed_is_named_and_help_needs_nothing(monkeypatch, capsys):
    monkeypatch.setattr(command, "_missing", lambda: ["torch", "pandas"])
    assert demo.main([]) == 2
    assert capsys.readouterr().err == "make demo needs torch, pandas: pip install torch pandas\n"
    code = (
        "import sys; sys.modules.update(dict.fromkeys(('torch', 'matplotlib', 'sklearn')))"
        "\nfrom benches.demo.__main__ import main; main(['--help'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert all(option in done.stdout for option in ("--codec", "--bandwidth", "--out"))


def test_results_need_a_folder(tmp_path, capsys):
    file = tmp_path / "file"
    file.write_text("kept")
    for out in (file, Path("/dev/null"), file / "below"):
        assert demo.main(["--out", str(out)]) == 1
        complaint = capsys.readouterr().err
        assert complaint.startswith(f"make demo: {out}: ")
    assert file.read_text() == "kept"
