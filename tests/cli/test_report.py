"""`gradwire report`."""

import io
import json
import subprocess
import sys
import webbrowser

import pytest

from gradwire.cli import main
from gradwire.report import read
from tests.report.samples import SAVED, saved
from tests.support import run_python


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "rank0.json"
    path.write_text(saved()[0].to_json())
    return path


def test_the_page_lies_beside_the_file(file, capsys):
    assert main(["report", str(file)]) == 0
    assert capsys.readouterr().out == f"{file.with_suffix('.html')}\n"
    assert file.with_suffix(".html").read_text("utf-8") == saved()[0].to_html()
    assert main(["report", str(file)]) == 0, "a page may be written again"


def test_files_of_several_ranks_make_one_page(file, capsys):
    other = file.with_name("rank1.json")
    other.write_text(saved()[1].to_json())
    page = file.with_name("all.html")
    assert main(["report", str(file), str(other), "--output", str(page)]) == 0
    assert "2 ranks of 2" in page.read_text("utf-8")


def test_a_pipe_is_read_and_printed_to(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(SAVED.read_bytes())))
    assert main(["report", "-", "--output", "-"]) == 0
    assert capsys.readouterr().out.startswith("<!DOCTYPE html>\n<html")


def test_open_shows_it_in_the_browser(file, monkeypatch, capsys):
    opened = []
    monkeypatch.setattr(webbrowser, "open", lambda url: bool(opened.append(url)) or True)
    assert main(["report", str(file), "--open"]) == 0
    assert opened == [file.with_suffix(".html").as_uri()]
    monkeypatch.setattr(webbrowser, "open", lambda url: False)
    assert main(["report", str(file), "--open"]) == 1
    assert "there is no browser" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "there is no report in it"),
        (b"\xff\xfe\x00", "it is not UTF-8 text"),
        (b"GWF1\x00\x00", "not JSON"),
        (b'{"loss": 3}', "it has no 'gradwire_report'"),
        (json.dumps({"gradwire_report": 9}).encode(), "version 9"),
    ],
)
def test_a_file_that_is_no_report_is_told_and_no_page_written(tmp_path, data, said, capsys):
    path = tmp_path / "log.json"
    path.write_bytes(data)
    assert main(["report", str(path)]) == 1
    complaint = capsys.readouterr().err
    assert complaint.startswith(f"gradwire report: {path}: ")
    assert said in complaint
    assert list(tmp_path.iterdir()) == [path]


def test_what_is_no_page_is_not_overwritten(file, capsys):
    before = file.read_bytes()
    assert main(["report", str(file), "--output", str(file)]) == 1
    assert "is not a page" in capsys.readouterr().err
    assert file.read_bytes() == before
    assert main(["report", str(file), "--output", str(file.parent / "no" / "page.html")]) == 1
    assert "No such file" in capsys.readouterr().err
    assert main(["report", str(file.with_name("missing"))]) == 1
    assert "cannot read" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["-"], ["FILE", "--output", "-", "--open"]])
def test_wrong_command_lines_are_told(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["report", *arguments])
    assert ended.value.code == 2
    assert "usage: gradwire report" in capsys.readouterr().err


def test_no_torch_is_needed(file):
    run_python(
        f"""
        import sys
        sys.modules["torch"] = None
        from gradwire.cli import main
        assert main(["report", {str(file)!r}]) == 0
        """
    )


def test_the_command_is_installed_with_its_style(file):
    command = [sys.executable, "-m", "gradwire", "report", str(file), "-o", "-"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "prefers-color-scheme" in done.stdout
    assert read(file.read_text())
