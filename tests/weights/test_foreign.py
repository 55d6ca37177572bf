"""What people take for a safetensors file gets its name, and what to do with it."""

import gzip
import io
import pickle
import tarfile

import numpy as np
import pytest

from gradwire import Codec, cli, memory, quantize, sparsify, weights
from gradwire.errors import CorruptFileError


def saved(function) -> bytes:
    file = io.BytesIO()
    function(file)
    return file.getvalue()


def of_torch(file, **options):
    torch = pytest.importorskip("torch")
    torch.save({"weight": torch.ones(30, 40)}, file, **options)


def tar(file):
    with tarfile.open(fileobj=file, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("model.safetensors"))


def frame():
    codec = Codec(sparsify=sparsify.All(), quantize=quantize.Float32(), memory=memory.NoMemory())
    return codec.encode(np.ones(3, np.float32), codec.init_state(3))


# The first bytes of ONNX files as exporters write them: version, producer or graph.
ONNX = b"\x08\x08\x12\x07pytorch\x1a\x052.1.0:\xb8\x02\n" + bytes(400)

FILES = {
    "torch.save": (lambda: saved(of_torch), "a pickle of torch.save: convert it with safetensors"),
    "torch.save, old": (
        lambda: saved(lambda file: of_torch(file, _use_new_zipfile_serialization=False)),
        "a pickle: convert it with safetensors",
    ),
    "pickle 0x80": (lambda: pickle.dumps({"a": np.ones(100)}), "a pickle: convert"),
    "npz": (lambda: saved(lambda file: np.savez(file, a=np.ones(4))), "an archive of numpy.savez"),
    "npy": (lambda: saved(lambda file: np.save(file, np.ones(4))), "an array of numpy.save"),
    "GGUF": (lambda: b"GGUF\x03\0\0\0" + bytes(100), "a GGUF file: take the safetensors"),
    "ONNX": (lambda: ONNX, "an ONNX model"),
    "ONNX, of a graph": (lambda: b"\x08\x07\x3a\x80\x10" + bytes(90), "an ONNX model"),
    "HDF5": (lambda: b"\x89HDF\r\n\x1a\n" + bytes(90), "an HDF5 file"),
    "LFS": (
        lambda: b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 123\n",
        "a pointer of git-lfs: fetch the file with git lfs pull",
    ),
    "HTML": (lambda: b"<!DOCTYPE html><html>login", "a page of HTML"),
    "XML": (lambda: b"\n <?xml version='1.0'?>", "a page of HTML"),
    "JSON": (lambda: b'{"weight_map": {"a": "b"}}', "JSON: the index of a sharded checkpoint is"),
    "gzip": (lambda: gzip.compress(bytes(100)), "a gzip archive"),
    "zstd": (lambda: b"\x28\xb5\x2f\xfd" + bytes(40), "a zstd archive"),
    "tar": (lambda: saved(tar), "a tar archive"),
    "frame": (lambda: bytes(frame()), "a single frame"),
}  # fmt: skip


@pytest.mark.parametrize("kind", FILES)
def test_other_files_get_the_word_they_deserve(kind, tmp_path, capsys):
    make, word = FILES[kind]
    path = tmp_path / "model.safetensors"
    path.write_bytes(make())
    with pytest.raises(ValueError, match=f"it is not a safetensors file, but {word}") as caught:
        weights.open(path)
    assert not isinstance(caught.value, CorruptFileError)
    for command in (["inspect"], ["pack"], ["unpack"], ["pack", "--lossless"]):
        outs = [] if command == ["inspect"] else [str(tmp_path / "out")]
        assert cli.main([*command, str(path), *outs]) == 1
        err = capsys.readouterr().err
        assert f"not a safetensors file, but {word}" in err
        assert "corrupt" not in err
    assert [*tmp_path.iterdir()] == [path]


def test_inspect_lists_safetensors_files_of_any_name(tmp_path, capsys):
    weights.save(tmp_path / "3f2a", {"w": np.ones((3, 4), np.float32)})  # as in a cache
    assert cli.main(["inspect", str(tmp_path / "3f2a")]) == 0
    assert "3 x 4" in capsys.readouterr().out
