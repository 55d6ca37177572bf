"""What people take for a safetensors file gets its name, and what to do with it."""

import io
import pickle

import numpy as np
import pytest

from gradwire import cli, weights
from gradwire.errors import CorruptFileError


def saved(function) -> bytes:
    file = io.BytesIO()
    function(file)
    return file.getvalue()


def of_torch(file, **options):
    torch = pytest.importorskip("torch")
    torch.save({"weight": torch.ones(30, 40)}, file, **options)


FILES = {
    "torch.save": (lambda: saved(of_torch), "a pickle of torch.save: convert it with safetensors"),
    "torch.save, old": (
        lambda: saved(lambda file: of_torch(file, _use_new_zipfile_serialization=False)),
        "a pickle: convert it with safetensors",
    ),
    "pickle 0x80": (lambda: pickle.dumps({"a": np.ones(100)}), "a pickle: convert"),
    "GGUF": (lambda: b"GGUF\x03\0\0\0" + bytes(100), "a GGUF file: take the safetensors"),
    "LFS": (
        lambda: b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 123\n",
        "a pointer of git-lfs: fetch the file with git lfs pull",
    ),
    "HTML": (lambda: b"<!DOCTYPE html><html>login", "a page of HTML"),
    "JSON": (lambda: b'{"weight_map": {"a": "b"}}', "JSON: the index of a sharded checkpoint is"),
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
