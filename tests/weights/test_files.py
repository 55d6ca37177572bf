"""`gradwire.weights.save` and `open`."""

import concurrent.futures
import json
import os
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from gradwire import weights
from gradwire.quantize import Affine
from tests.support import run_python
from tests.weights import plain_reader

safetensors_numpy = pytest.importorskip("safetensors.numpy")

GOLDEN = Path(__file__).parent.parent / "golden" / "weights"


@pytest.fixture(scope="module")
def tensors():
    random = np.random.default_rng(3)
    matrix = random.normal(size=(24, 96)).astype(np.float32)
    return {
        "plain": random.normal(size=(3, 5)).astype(np.float32),
        "half": random.normal(size=7).astype(ml_dtypes.bfloat16),
        "ids": np.arange(5),
        "flags": np.array([[True], [False]]),
        "nothing": np.zeros((0, 4), np.float16),
        "scalar": np.array(2.5, np.float64),
        "squares": weights.pack(matrix, Affine(4, 32)),
        "vector": weights.pack(matrix[0, :77].astype(np.float16), Affine(3, 16, fit="zero")),
        "nested": weights.pack(matrix, Affine(3, 32, fit="range"), more=(4,)),
        "whole": weights.pack(matrix.reshape(2, 12, 96) * 1e-9, Affine(7, None)),
    }


@pytest.fixture
def path(tensors, tmp_path):
    path = tmp_path / "small.safetensors"
    weights.save(path, tensors, {"about": "a test"})
    return path


def test_a_reader_made_from_the_page_finds_the_same_values(tensors, path):
    found = plain_reader.read(path.read_bytes())
    with weights.open(path) as file:
        assert found.keys() == {n for n in tensors if isinstance(tensors[n], weights.Packed)}
        for name, (first, every) in found.items():
            np.testing.assert_array_equal(file[name].unpack(bits=file[name].first_bits), first)
            if every is not None:
                np.testing.assert_array_equal(file[name].unpack(), every)


def test_the_safetensors_library_reads_all_that_is_not_packed(tensors, path):
    found = safetensors_numpy.load_file(path)
    for name, tensor in tensors.items():
        if isinstance(tensor, weights.Packed):
            assert found[name].tobytes() == bytes(tensor.frame)
        else:
            assert found[name].tobytes() == tensor.tobytes()
    assert found["nested.more.0"].tobytes() == tensors["nested"].further


def test_further_bits_are_not_a_tensor_of_their_own(path):
    with weights.open(path) as file:
        assert "nested.more.0" not in file
        with pytest.raises(KeyError):
            file["nested.more.0"]
        with pytest.raises(KeyError):
            file["no such"]


def test_tensors_outlive_the_file(tensors, path):
    with weights.open(path) as file:
        packed, plain = file["squares"], file["plain"]
    path.unlink()
    np.testing.assert_array_equal(packed.unpack(), tensors["squares"].unpack())
    np.testing.assert_array_equal(plain, tensors["plain"])


def test_reading_one_tensor_of_a_large_file_takes_the_memory_of_that_one(tmp_path):
    out = run_python(f"""
        import resource
        import numpy as np
        from gradwire import quantize, weights

        block = weights.pack(np.ones((1024, 4096), np.float32), quantize.Affine(8, 64))
        tensors = {{f"w{{i}}": block for i in range(24)}}
        weights.save({str(tmp_path / "large.safetensors")!r}, tensors)
        def resident():
            with open("/proc/self/statm") as file:
                return int(file.read().split()[1]) * resource.getpagesize()
        before = resident()
        file = weights.open({str(tmp_path / "large.safetensors")!r})
        opened = resident()
        file["w7"].frame
        print((opened - before) / block.nbytes, (resident() - before) / block.nbytes)
    """)
    opened, read = map(float, out.split()[-2:])
    assert opened < 0.3
    assert read < 3  # the checks copy the frame


@pytest.mark.parametrize("order", [1, -1])
def test_a_name_that_further_bits_take_is_refused(tensors, tmp_path, order):
    both = {"w": tensors["nested"], "w.more.0": tensors["plain"]}
    with pytest.raises(ValueError, match=r"the name 'w\.more\.0' is taken"):
        weights.save(tmp_path / "twice", dict(list(both.items())[::order]))
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), RuntimeError("gone")])
def test_an_error_of_the_disk_or_the_mapping_leaves_the_old_file_and_nothing_else(
    tensors, path, monkeypatch, error
):
    class Failing(dict):
        def __getitem__(self, name):
            return fail() if isinstance(error, RuntimeError) else super().__getitem__(name)

    def fail(*_):
        raise error

    before = path.read_bytes()
    if isinstance(error, OSError):
        monkeypatch.setattr(os, "fsync", fail)  # at the end
    with pytest.raises(type(error), match=r"No space left on device.*small\.safetensors|gone"):
        weights.save(path, Failing(tensors))
    assert path.read_bytes() == before
    assert [*path.parent.iterdir()] == [path]


def test_a_folder_that_is_read_only_stays_as_it_is(path, tmp_path):
    before = path.read_bytes()
    tmp_path.chmod(0o555)
    program = """
        import os, sys, numpy
        from gradwire import weights
        os.chdir(sys.argv[1])
        os.geteuid() or os.seteuid(65534)  # to root nothing is read-only
        try:
            weights.save("small.safetensors", {"a": numpy.zeros(3)})
        except PermissionError as error:
            print(error)
    """
    assert "small.safetensors" in run_python(program, str(tmp_path))
    tmp_path.chmod(0o755)
    assert path.read_bytes() == before
    assert [*tmp_path.iterdir()] == [path]


def test_a_file_is_replaced_by_what_is_read_from_it(tensors, path):
    path.chmod(0o640)
    with weights.open(path) as file:
        weights.save(path, {"squares": file["squares"]})
        np.testing.assert_array_equal(file["plain"], tensors["plain"])  # the old one is still read
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    with weights.open(path) as file:
        np.testing.assert_array_equal(file["squares"].unpack(), tensors["squares"].unpack())


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.safetensors")), ids=lambda path: path.stem)
def test_golden_files_are_read_to_the_bit(path):
    expected = json.loads((GOLDEN / "manifest.json").read_text())[path.stem]
    with weights.open(path) as file:
        assert list(file) == list(expected)
        for name, about in expected.items():
            found = file[name]
            if not isinstance(found, weights.Packed):
                assert found.tobytes().hex() == about["bytes"]
                continue
            assert [list(found.shape), found.dtype, found.bits, found.block] == about["packed"]
            for bits, values in about["values"].items():
                assert found.unpack(bits=int(bits)).astype(">f4").tobytes().hex() == values


def test_what_needs_no_bfloat16_needs_no_ml_dtypes(tmp_path: Path) -> None:
    tensors = {"w": np.ones((64, 64), np.float32), "half": np.ones(3, ml_dtypes.bfloat16)}
    weights.save(tmp_path / "in.safetensors", tensors)
    out = run_python(
        f"""
        import sys
        sys.modules["ml_dtypes"] = None
        from gradwire import weights
        from gradwire.cli import main
        with weights.open({str(tmp_path / "in.safetensors")!r}) as file:
            print(file["w"].sum())
            try:
                file["half"]
            except ImportError as error:
                print(error)
        print(main(["codecs", "topk"]))
        """
    )
    assert out.startswith("4096.0")
    assert "BF16 needs ml_dtypes: pip install ml-dtypes" in out
    assert out.split()[-1] == "0"


@pytest.mark.parametrize("lossless", [False, True])
def test_a_file_that_is_not_mapped_stays_as_it_was_read(tensors, tmp_path, lossless):
    """A file that is overwritten in place changes arrays that are in its pages."""
    path = tmp_path / "file"
    weights.save(path, tensors, lossless=lossless)
    data = path.read_bytes()
    with weights.open(path) as file, weights.open(path, mapped=False) as copied:
        shared, copies = file["plain"], dict(copied)
        with path.open("r+b") as target:
            target.write(bytes(len(data)))
    assert lossless or not shared.any()
    for name, tensor in tensors.items():
        if isinstance(tensor, weights.Packed):
            assert bytes(copies[name].joined()) == bytes(tensor.joined())
        else:
            assert copies[name].tobytes() == tensor.tobytes()
            assert copies[name].flags.writeable
    path.write_bytes(data)
    with weights.open(path, mapped=False) as copied:
        os.truncate(path, len(data) - 1)
        with pytest.raises(ValueError, match="was cut while it was open"):
            copied[max(copied, key=lambda name: copied._sections[name].range[1])]


@pytest.mark.parametrize("mapped", [False, True])
def test_threads_and_forked_processes_read_one_open_file(tmp_path, mapped):
    """The digest of the base is taken while others read: each at its own position."""
    random = np.random.default_rng(5)
    old = {f"w{i}": random.normal(size=300_000).astype(np.float32) for i in range(4)}
    new = {name: array + np.float32(1e-3) for name, array in old.items()}
    weights.save(tmp_path / "a", old)
    weights.save(tmp_path / "b", new, base=tmp_path / "a")
    with (
        weights.open(tmp_path / "b", mapped=mapped) as file,
        concurrent.futures.ThreadPoolExecutor(4) as pool,
    ):
        for name, found in zip(new, pool.map(file.__getitem__, new), strict=True):
            np.testing.assert_array_equal(found, new[name])
    code = f"""
        import os, sys
        from gradwire import weights
        with weights.open({str(tmp_path / "b")!r}, mapped={mapped}) as file:
            children = []
            for name in file:
                children.append(os.fork())
                if children[-1] == 0:
                    os._exit(0 if abs(float(file[name].mean())) < 1 else 1)
            print([os.waitpid(child, 0)[1] for child in children])
    """
    assert run_python(code).strip() == "[0, 0, 0, 0]"


KILLED = """
    import os, signal, sys
    import numpy as np
    from gradwire import weights

    class Tensors(dict):
        def __getitem__(self, name):
            if sys.argv[2] == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            print("saving", flush=True)
            sys.stdin.read()
            return super().__getitem__(name)

    weights.save(sys.argv[1], Tensors(a=np.ones(30)))
"""


def test_what_a_killed_save_left_is_removed_by_the_next_and_nothing_else(tmp_path):
    program, path = textwrap.dedent(KILLED), tmp_path / "new"
    command = [sys.executable, "-c", program, path]
    path.write_bytes(b"old")
    subprocess.run([*command, "kill"], check=False)
    assert path.read_bytes() == b"old"
    (left,) = {*tmp_path.iterdir()} - {path}
    assert left.name.startswith(".gradwire-")
    # Another process is saving, and files that are nobody's.
    with subprocess.Popen(
        [*command, "wait"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as saving:
        assert saving.stdout.readline() == b"saving\n"
        (busy,) = {*tmp_path.iterdir()} - {path}  # it has removed the one that was left
        other = [tmp_path / ".gradwire-notes", tmp_path / f".gradwire-{'0' * 24}"]
        for each in other:
            each.write_bytes(b"kept")  # the second one is of another host, and new
        weights.save(path, {"b": np.zeros(3)})
        assert {*tmp_path.iterdir()} == {path, busy, *other}
        saving.communicate()
        assert saving.returncode == 0
    assert list(weights.open(path)) == ["a"]
    os.utime(other[1], (0, 0))
    weights.save(path, {"b": np.zeros(3)})
    assert {*tmp_path.iterdir()} == {path, other[0]}


@pytest.mark.parametrize("lossless", [False, True])
@pytest.mark.parametrize("target", ["/dev/stdout", "fifo", "/dev/fd/1"])
def test_a_file_goes_through_a_pipe(tensors, tmp_path, target, lossless):
    os.mkfifo(tmp_path / "fifo")
    weights.save(tmp_path / "in", tensors)
    code = f"""
        import sys
        from gradwire import weights
        with weights.open("in") as file:
            weights.save({target!r}, dict(file), file.metadata, lossless={lossless})
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE) as writer:
        if target == "fifo":
            (tmp_path / "out").write_bytes((tmp_path / "fifo").read_bytes())
        else:
            (tmp_path / "out").write_bytes(writer.stdout.read())
    assert writer.returncode == 0
    with weights.open(tmp_path / "out") as file:
        assert list(file) == list(tensors)
        assert file["plain"].tobytes() == tensors["plain"].tobytes()
    weights.save("/dev/null", tensors, lossless=lossless)
    with pytest.raises(OSError, match="not a regular file"):
        weights.open(tmp_path / "fifo")
