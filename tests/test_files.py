"""Files of any size and content, and disks without room."""

from pathlib import Path

import pytest

from gradwire import _files
from gradwire.cli import main
from gradwire.cost import Calibration
from tests.support import run_on_a_small_disk

PLAN = ["plan", "--model-size", "25M", "--ranks", "8", "--link", "1gbit", "--backward", "50ms"]

HOSTILE = {
    "deep": (b"[" * 100_000, "nested too deeply"),
    "deep object": (b'{"a":' * 100_000, "nested too deeply"),
    "deep field": (
        b'{"version": 1, "machine": %s%s}' % (b"[" * 900, b"]" * 900),
        "",
    ),
    "long field": (b'{"version": "%s"}' % (b"9" * 10_000), ""),
    "no text": (b"\xff\xfe\x00", "not UTF-8"),
    "sparse": (None, "more than "),
}


@pytest.fixture(params=HOSTILE)
def hostile(request, tmp_path: Path) -> tuple[Path, str]:
    """A file that may have come from anywhere, and what is said of it."""
    data, said = HOSTILE[request.param]
    path = tmp_path / "file.json"
    path.write_bytes(data or b"")
    if data is None:
        with path.open("r+b") as file:
            file.truncate(10 << 30)
    return path, said


def test_a_hostile_file_is_told_in_a_line(hostile, capsys):
    path, said = hostile
    assert main([*PLAN, "--calibration", str(path)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"gradwire plan: {path}")
    assert said in line
    assert len(line) < 600


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="there is no /dev/zero")
def test_no_more_is_read_than_allowed():
    with pytest.raises(ValueError, match="more than 1 MiB"):
        _files.read_json("/dev/zero", 1 << 20)


def test_a_full_disk_is_told_and_nothing_is_left(tmp_path):
    printed = run_on_a_small_disk(
        """
        import os, sys
        from pathlib import Path
        from gradwire import _files

        folder = Path(sys.argv[1])
        (folder / "filling").write_bytes(bytes(230_000))
        (folder / "page").write_text("earlier")
        for name in ("page", "new"):
            try:
                _files.write(folder / name, "later" * 20_000)
            except OSError as error:
                print(error.strerror, Path(error.filename).parent == folder)
        print((folder / "page").read_text(), sorted(os.listdir(folder)))
        """,
        tmp_path,
    )
    *told, left = printed.splitlines()
    assert told == ["No space left on device True"] * 2
    assert left == "earlier ['filling', 'page']"


def test_a_calibration_is_whole_or_as_before(tmp_path, monkeypatch):
    path = tmp_path / "calibration.json"
    path.write_text("before")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="No space left") as caught:
        Calibration({}, 1.0, 1.0, 1, {}).save(path)
    assert caught.value.filename == str(path)
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
    assert path.read_text() == "before"


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "there").write_text("old")
    (tmp_path / "link").symlink_to("there")
    _files.write(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "there").read_text() == "new"
    (tmp_path / "there").chmod(0o640)
    _files.write(tmp_path / "link", "newer")
    assert (tmp_path / "there").stat().st_mode & 0o777 == 0o640
    _files.write("/dev/null", "anything")
    assert not Path("/dev/null").is_file()
