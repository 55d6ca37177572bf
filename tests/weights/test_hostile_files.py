"""Files that somebody wrote who wants harm: reading takes no more than they hold."""

import base64
import json
import os
import socket
import struct
import subprocess
import sys
import textwrap
import zlib

import numpy as np
import pytest

from gradwire import _native, weights
from gradwire.errors import CorruptFileError
from gradwire.weights import saving
from tests.weights.containers import put_together, taken_apart

MEMORY = 300 << 20
"""Bytes that a reader may take besides what Python and the package take."""

SECONDS = 10
"""Of processor time; without the checks, these inputs take minutes, gigabytes or for ever."""


def file_of(about, sections=(), data=b"", metadata=None):
    """A file with this description; sections are of name, dtype, shape, begin and end."""
    header = {"__metadata__": {"gradwire": json.dumps(about), **(metadata or {})}}
    for name, dtype, shape, begin, end in sections:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    return put_together(header, data)


def zipped(data):
    return base64.b64encode(zlib.compress(data, 9)).decode()


def coded(shape, blocks, dtype="float32", coding="lossless", **others):
    data = struct.pack("<I", _native.crc32c(blocks, 0)) + blocks
    fields = {"shape": shape, "dtype": dtype, "coding": coding}
    about = {"version": 1, "tensors": {"w": fields}, **others}
    return file_of(about, [("w", "U8", [len(data)], 0, len(data))], data)


def based_on(name):
    base = {"name": name, "sha256": "0" * 64}
    return file_of({"version": 1, "tensors": {}, "base": base})


BOMB = zipped(b'{"a":[' + b"{}," * ((100 << 20) // 3 - 10) + b"{}]}")
NOTHING = {"version": 1, "tensors": {}}
# A difference of 65,536 zeros takes eight bytes.
EQUAL = struct.pack("<I", 4) + b"\4\0\0\0"

WRITTEN = {
    "original-bomb": file_of(NOTHING | {"header": BOMB}),
    "original-twice": file_of(NOTHING | {"header": zipped(json.dumps({"a": BOMB}).encode())}),
    "claim": coded([(1 << 17) * 65_536], bytes(1 << 20)),
    "claim-of-short-blocks": coded([(1 << 17) * 65_536], EQUAL * (1 << 17)),
    "claim-beyond-memory": coded([1 << 50], EQUAL * 1000),
    "claim-within-the-limit": coded([1 << 30], EQUAL * (1 << 14) + bytes((1 << 20) - (1 << 17))),
    "claim-of-a-base": coded(
        [1 << 33], EQUAL * (1 << 17), coding="difference", base={"name": "a", "sha256": "0" * 64}
    ),
    "shape-of-nothing": file_of(NOTHING, [("w", "F32", [2**62, 2**62, 0], 0, 0)]),
    "shape-of-nothing-backwards": file_of(NOTHING, [("w", "F32", [0, 2**63 - 1], 0, 0)]),
    "half-a-character": file_of(NOTHING, [("\ud800", "F32", [], 0, 4)], b"1234"),
    "half-a-character-in-metadata": file_of(NOTHING, metadata={"a": "\udfff"}),
    "half-a-character-in-a-base": based_on("\udc80"),
    "brackets": put_together(b"[" + b"[]," * 999_999 + b"[]]"),
    "digits": put_together(b"[" + b"9" * 1_000_000 + b"]"),
    "not-a-number": put_together(b'{"a":NaN}'),
}
BASES = [
    *("fifo", "link-to-fifo", "socket", "link-to-device", "loop", "folder", "none", "x" * 300),
    *("/dev/zero", "/etc/passwd", "../../../a", "a/../b", "a/..", ".", "..", "", "./a", "a//b"),
    *("../" * 500 + "a", "a\\b", "a\0b", "a/" * 3000 + "a", None, 5, ["a"]),
]
FILES = WRITTEN | {f"base-{i}": based_on(name) for i, name in enumerate(BASES)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """All files, and what stands beside them."""
    folder = tmp_path_factory.mktemp("hostile")
    for name, data in FILES.items():
        (folder / f"{name}.safetensors").write_bytes(data)
    os.mkfifo(folder / "fifo")
    (folder / "link-to-fifo").symlink_to("fifo")
    (folder / "link-to-device").symlink_to("/dev/zero")
    (folder / "loop").symlink_to("loop")
    (folder / "folder").mkdir()
    place = os.getcwd()
    os.chdir(folder)  # the path of a socket is short
    with socket.socket(socket.AF_UNIX) as made:
        made.bind("socket")
    os.chdir(place)
    (folder / "a").write_bytes(file_of(NOTHING))
    os.mkfifo(folder / "itself-fifo.safetensors")
    (folder / "itself-device.safetensors").symlink_to("/dev/zero")
    # A chain of seventeen bombs.
    for i in range(18):
        about = NOTHING | {"header": BOMB}
        if i:
            about = about | {"base": {"name": f"chain-{i - 1}.safetensors", "sha256": "0" * 64}}
        (folder / f"chain-{i}.safetensors").write_bytes(file_of(about))
    return folder


@pytest.fixture(scope="module")
def outcomes(folder):
    """What reading each file ended in, in a process with little memory and time."""
    program = f"""
        import os, resource, sys
        from pathlib import Path
        from gradwire import weights
        from gradwire.cli import main
        import gradwire.cli.pack, gradwire.cli.unpack, gradwire.cli.inspect
        from gradwire.errors import GradwireError

        def read(path, **options):
            with weights.open(path, **options) as file:
                for name in file:
                    file[name]

        def command(*arguments):
            code = main([str(each) for each in arguments])
            print("code", code, flush=True)

        acts = {{
            "read": read,
            "copied": lambda path: read(path, mapped=False),
            "grams": weights.load_grams,
            "inspect": lambda path: command("inspect", path),
            "unpack": lambda path: command("unpack", path, path.with_name("out")),
            "pack": lambda path: command("pack", "--lossless", path, path.with_name("out")),
        }}
        for path in sorted(Path(sys.argv[1]).glob("*.safetensors")):
            for act, work in acts.items():
                print("\\n==", path.stem, act, flush=True)
                child = os.fork()
                if child == 0:
                    pages = int(open("/proc/self/statm").read().split()[0])
                    most = pages * resource.getpagesize() + {MEMORY}
                    resource.setrlimit(resource.RLIMIT_AS, (most, most))
                    resource.setrlimit(resource.RLIMIT_CPU, ({SECONDS}, {SECONDS}))
                    os.dup2(1, 2)
                    try:
                        work(path)
                    except (GradwireError, OSError, MemoryError) as error:
                        print(type(error).__name__, str(error)[:300], flush=True)
                    except BaseException as error:
                        print("UNTYPED", type(error).__name__, error, flush=True)
                    os._exit(0)
                _, status = os.waitpid(child, 0)
                if status:
                    print("KILLED", status, flush=True)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), folder],
        capture_output=True,
        text=True,
        errors="replace",
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = {}
    for part in done.stdout.split("\n== ")[1:]:
        head, _, said = part.partition("\n")
        found[tuple(head.split())] = said.strip()
    return found


# What is sound but for what nobody asks for, and is read.
SOUND = {"original-bomb", "original-twice", "a", *(f"chain-{i}" for i in range(17))}


def test_each_hostile_file_ends_in_an_error_that_says_why(outcomes):
    """Within the memory and time of `MEMORY` and `SECONDS`."""
    wrong = {}
    for (name, act), said in outcomes.items():
        assert "KILLED" not in said, (name, act, said)
        assert "UNTYPED" not in said, (name, act, said)
        assert "Traceback" not in said, (name, act, said)
        sound = name in SOUND and act in ("read", "copied", "inspect", "pack")
        refused = "Error" in said or "code 1" in said
        if sound == refused:
            wrong[name, act] = said
    assert not wrong
    assert len(outcomes) > 6 * len(FILES)


def test_what_is_too_large_for_this_process_is_named(outcomes):
    said = outcomes["claim-within-the-limit", "read"]
    assert "corrupt" in said or "takes 4294967296 bytes" in said


def test_a_base_that_is_no_regular_file_is_refused_by_name(folder):
    for name, why in [
        *((each, "not a regular file") for each in ("fifo", "link-to-fifo", "link-to-device")),
        *(("folder", "directory"), ("loop", "symbolic links"), ("x" * 300, "name too long")),
    ]:
        path = folder / "tried"
        path.write_bytes(based_on(name))
        with pytest.raises(CorruptFileError, match=f"its base '{name}' cannot be read.*{why}"):
            weights.open(path)


@pytest.mark.parametrize("spaces", [0, 1000, 300_000])
def test_an_original_header_is_as_long_as_the_file_says(spaces, tmp_path):
    """A writer puts spaces after its own header; a reader takes no more than they allow."""
    path, small, back = (tmp_path / name for name in ("in", "small", "back"))
    weights.save(path, {"w": np.zeros(3, np.float32)})
    data = path.read_bytes()
    about, body = taken_apart(data)
    header = json.dumps(about).encode() + b" " * spaces
    path.write_bytes(put_together(header, body))
    with weights.open(path) as file:
        saving.write(small, saving.sections_of(file), {}, lossless=True, original=file.header)
    with weights.open(small) as file:
        assert 16 * len(file.header) >= len(header)
        saving.restore(file, back)
    assert back.read_bytes() == path.read_bytes()
    # The same without the spaces.
    text = json.dumps(taken_apart(small.read_bytes())[0]).encode()
    small.write_bytes(put_together(text, body))
    with weights.open(small) as file:
        if spaces < 300_000:
            assert file.original() is not None
            return
        with pytest.raises(CorruptFileError, match=f"longer than {16 * len(text)} bytes"):
            file.original()
        np.testing.assert_array_equal(file["w"], np.zeros(3, np.float32))


def test_codes_have_a_4096th_of_what_they_decode_to(tmp_path):
    path, base = tmp_path / "new", tmp_path / "base"
    array = np.zeros(1 << 22, np.float32)
    weights.save(base, {"w": array})
    weights.save(path, {"w": array}, base=base)
    with weights.open(path) as file:
        assert len(file.data("w")) == array.nbytes // 4096
        assert not file["w"].any()
    data = bytearray(path.read_bytes())
    # Something stands after the codes, with a right checksum.
    data[-1] = 1
    start = len(data) - array.nbytes // 4096
    data[start : start + 4] = struct.pack("<I", _native.crc32c(bytes(data[start + 4 :]), 0))
    path.write_bytes(data)
    with weights.open(path) as file, pytest.raises(CorruptFileError, match="follow its codes"):
        file["w"]
