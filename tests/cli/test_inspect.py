"""`gradwire inspect`."""

import io
import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import gradwire
from gradwire.cli import main
from gradwire.cost.network import information_bits
from gradwire.memory import NoMemory
from gradwire.quantize import Float16
from tests.deadlines import stretched

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


def test_positions_in_clusters_are_not_held_against_the_bound_of_random_ones(tmp_path, capsys):
    block = np.r_[np.arange(1, 101, dtype=np.float32), np.zeros(9900, np.float32)]
    path = tmp_path / "frame.gwf"
    path.write_bytes(gradwire.topk(0.01, memory=NoMemory()).encode(block))
    assert main(["inspect", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "entropy bound" not in shown
    assert "(random positions: at least 8.0" in shown
    assert main(["inspect", "--json", str(path)]) == 0
    assert json.loads(capsys.readouterr().out)["index_bits_bound"] is None


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
    (lambda data: data[:20], "TruncatedFrameError", "header needs 48 bytes, got 20"),
    (lambda data: data + b"\0", "CorruptFrameError", ", but more follow"),
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
    assert "has no *.safetensors: name the file, or the index" in capsys.readouterr().err


ENDLESS = [
    (b"", "magic"),
    # Version 1, of so many elements; lengths that no frame of them has.
    (b"GWF\x01" + bytes(12) + (2**40).to_bytes(8, "little") + bytes(8) + b"\xff" * 4, "2**40"),
    (b"GWF\x01" + bytes(12) + (100).to_bytes(8, "little") + bytes(8) + b"\xff" * 4, "100 elements"),
]


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="there is no /dev/zero")
@pytest.mark.parametrize(("head", "complaint"), ENDLESS, ids=[what for _, what in ENDLESS])
def test_an_endless_source_is_left_after_its_header(head, complaint, tmp_path):
    (tmp_path / "head").write_bytes(head)
    inspect = f"ulimit -v 4000000; cat {tmp_path / 'head'} /dev/zero | {sys.executable} -m gradwire"
    done = subprocess.run(
        ["bash", "-c", f"{inspect} inspect -"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert complaint.replace("2**40", str(2**40)) in done.stderr
    assert "Traceback" not in done.stderr


def test_what_follows_a_frame_is_not_read(frame, tmp_path):
    (tmp_path / "frame.gwf").write_bytes(frame)
    script = f"cat {tmp_path / 'frame.gwf'} /dev/zero | {sys.executable} -m gradwire inspect -"
    limit = stretched(60)
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=limit)
    assert done.returncode == 1
    assert ", but more follow" in done.stderr


@pytest.mark.parametrize(
    ("stem", "coding"),
    [
        ("chunk_local_float32", "chunk-local"),
        ("seeded_subset_float32", "seeded"),
        ("bitmap_float32", "bitmap"),
        ("elias_fano_float32", "elias-fano"),
        ("rice_float32", "rice"),
        ("dense_float32", "none needed"),
    ],
)
def test_each_coding_goes_by_its_name(stem, coding, capsys):
    assert main(["inspect", str(GOLDEN / f"{stem}.gwf")]) == 0
    indices = next(line for line in capsys.readouterr().out.splitlines() if "indices" in line)
    assert f"bytes, {coding}" in indices


@pytest.mark.parametrize(("numel", "count"), [(1, 1), (10, 3), (1000, 10), (60, 30)])
def test_the_information_bits(numel, count):
    expected = math.log2(math.comb(numel, count)) / count
    assert information_bits(numel, count) == pytest.approx(expected, abs=1e-9)
