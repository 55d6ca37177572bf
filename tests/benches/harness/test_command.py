"""How the commands that train end when the world around them fails."""

from pathlib import Path

import pytest

from benches.demo import __main__ as demo
from benches.harness import command
from benches.harness.link import LinkUnavailableError


def test_results_need_a_folder(tmp_path, capsys):
    file = tmp_path / "file"
    file.write_text("kept")
    for out in (file, Path("/dev/null"), file / "below"):
        assert demo.main(["--out", str(out)]) == 1
        complaint = capsys.readouterr().err
        assert f": --out {out}" in complaint or f"--out {out}: " in complaint
        assert "Traceback" not in complaint
    assert file.read_text() == "kept"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            LinkUnavailableError("tc qdisc replace: no such process"),
            "the link between the ranks failed: tc qdisc replace",
        ),
        (OSError(28, "No space left on device", "demo.png"), "demo.png: No space left on device"),
    ],
    ids=["link", "disk"],
)
def test_what_goes_wrong_midway_is_a_line_on_stderr(error, said, capsys):
    def fail() -> int:
        raise error

    assert command.conduct("make demo", fail) == 1
    assert said in capsys.readouterr().err
