"""`gradwire inspect`."""

import io
import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest

import gradwire
from gradwire.cli import main
from gradwire.cli.inspect import entropy_bound
from gradwire.memory import NoMemory
from gradwire.quantize import Float16

GOLDEN = Path(__file__).parent.parent / "golden" / "v1"


@pytest.fixture
def frame(gradient):
    return gradwire.topk(0.01, memory=NoMemory(), quantize=Float16()).encode(gradient)


@pytest.fixture
def file(frame, tmp_path):
    path = tmp_path / "frame.gwf"
    path.write_bytes(frame)
    return path


def test_prints_header_and_sections(file, frame, capsys):
    assert main(["inspect", str(file)]) == 0
    out = capsys.readouterr().out
    for text in (
        str(file),
        f"version 1, {frame.nbytes:,} bytes",
        "correct",
        "10,000 elements, float32",
        "100 (1 %)",
        "top-k",
        "float16 (scaled), scaled by 2**",
        "entropy bound 8.0",
    ):
        assert text in out


def test_json_has_the_numbers(file, frame, capsys):
    assert main(["inspect", "--json", str(file)]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report.items() >= frame.header().items()
    assert report["bits_per_entry"] == 8 * frame.nbytes / 100
    assert report["index_bits_bound"] <= report["index_bits_per_entry"]
    assert report["index_bits_per_entry"] < report["index_bits_bound"] + 0.6
    assert report["compression"] == 40_000 / frame.nbytes
    assert report["largest_magnitude"] == np.abs(frame.values()).max()


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.gwf")), ids=lambda path: path.stem)
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_every_golden_frame_can_be_shown(path, options, capsys):
    assert main(["inspect", *options, str(path)]) == 0
    assert capsys.readouterr().out


def test_standard_input(frame, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(bytes(frame))))
    assert main(["inspect", "-"]) == 0
    assert "100 (1 %)" in capsys.readouterr().out


CORRUPT = [
    (lambda data: data[:-1], "TruncatedFrameError", "truncated frame"),
    (lambda data: data[:20], "TruncatedFrameError", "header needs 48 bytes, 20 are there"),
    (lambda data: data + b"\0", "CorruptFrameError", "1 bytes follow the frame"),
    (lambda data: data[:60] + b"\xff\xff" + data[62:], "CorruptFrameError", "checksum"),
    (lambda data: b"not a frame", "CorruptFrameError", "magic"),
    (lambda data: data[:3] + b"\x09" + data[4:], "UnsupportedFrameError", "version 9"),
]


@pytest.mark.parametrize(("damage", "error", "message"), CORRUPT, ids=[m for _, _, m in CORRUPT])
def test_says_why_a_frame_is_corrupt(damage, error, message, file, frame, capsys):
    file.write_bytes(damage(bytes(frame)))
    assert main(["inspect", str(file)]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
    assert str(file) in captured.err
    assert main(["inspect", "--json", str(file)]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["error"] == error
    assert message in report["message"]


def test_a_file_that_is_not_there(tmp_path, capsys):
    assert main(["inspect", str(tmp_path / "nothing.gwf")]) == 1
    assert "cannot read" in capsys.readouterr().err
    assert main(["inspect", str(tmp_path)]) == 1
    assert "cannot read" in capsys.readouterr().err


@pytest.mark.parametrize(("numel", "count"), [(1, 1), (10, 3), (1000, 10), (60, 30)])
def test_the_entropy_bound(numel, count):
    expected = math.log2(math.comb(numel, count)) / count
    assert entropy_bound(numel, count) == pytest.approx(expected, abs=1e-9)
