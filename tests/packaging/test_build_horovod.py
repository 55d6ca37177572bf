"""What `scripts/build_horovod.py` does where Horovod cannot be built."""

import io
import json
import sys
import tarfile
from pathlib import Path

import pytest

from scripts import build_horovod


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment and a cache of its own, on a machine that has a compiler."""
    monkeypatch.setattr(build_horovod, "RECORD", tmp_path / "record.json")
    monkeypatch.setattr(build_horovod, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(build_horovod, "obstacle", lambda: None)
    return tmp_path / "record.json"


def status(monkeypatch: pytest.MonkeyPatch, *options: str) -> int:
    monkeypatch.setattr(sys, "argv", ["build_horovod.py", *options])
    return build_horovod.main()


def archive(path: Path, texts: dict[str, str]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, text in texts.items():
            member = tarfile.TarInfo(f"horovod-{build_horovod.VERSION}/{name}")
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text.encode()))
    return path


def test_a_machine_without_a_compiler_goes_on_and_says_so(record, monkeypatch, capsys):
    monkeypatch.setattr(build_horovod, "obstacle", lambda: "there is no C++ compiler")
    assert [status(monkeypatch, *options) for options in ((), ("--optional",), ("--tests",))] == [
        1,
        0,
        0,
    ]
    said = capsys.readouterr().out.splitlines()
    assert said == ["==> no Horovod, and no tests of it: there is no C++ compiler"] * 3
    assert json.loads(record.read_text())["missing"] == "there is no C++ compiler"


@pytest.mark.full
def test_a_failure_is_no_excuse_on_a_machine_that_can_build_it(record, monkeypatch, capsys):
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9")  # where nothing listens
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    pytest.importorskip("pip", reason="the layer horovod has pip")
    assert status(monkeypatch, "--optional") == 1
    assert status(monkeypatch, "--tests") == 0
    assert "the download failed: ERROR: Could not find a version" in capsys.readouterr().out
    assert "the download failed" in json.loads(record.read_text())["missing"]


def test_a_build_that_failed_is_tried_again_only_when_asked(record, monkeypatch):
    asked = []

    def wheel() -> Path:
        asked.append(1)
        raise build_horovod.Failed("the build failed: error: something (all of it: build.log)")

    monkeypatch.setattr(build_horovod, "wheel", wheel)
    assert [status(monkeypatch, *options) for options in (("--tests",), ("--tests",), ())] == [
        0,
        0,
        1,
    ]
    assert len(asked) == 2


def test_an_edit_that_does_not_apply_is_an_error(tmp_path):
    texts = {name: "" for name, _, _ in build_horovod.EDITS}
    for name, old, _ in build_horovod.EDITS:
        texts[name] += f"{old}\n"
    source = build_horovod.unpack(archive(tmp_path / "good.tar.gz", texts), tmp_path / "good")
    for name, old, new in build_horovod.EDITS:
        assert new in (source / name).read_text()
        assert old not in (source / name).read_text()
    texts["setup.py"] = texts["setup.py"] * 2
    with pytest.raises(build_horovod.Failed, match=r"setup\.py has .* 2 times, not once"):
        build_horovod.unpack(archive(tmp_path / "bad.tar.gz", texts), tmp_path / "bad")
