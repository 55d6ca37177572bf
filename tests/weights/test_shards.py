"""Sharded checkpoints: read by their index or folder, written with one, and hostile indices."""

import json
import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from gradwire import cli, weights
from gradwire.errors import CorruptFileError
from gradwire.weights.shards import size_of, split

INDEX = "model.safetensors.index.json"


def run(*arguments) -> int:
    return cli.main([str(each) for each in arguments])


def write(folder, shards, index=INDEX, **fields):
    """A sharded checkpoint of these tensors by names of files."""
    folder.mkdir(exist_ok=True)
    for name, tensors in shards.items():
        weights.save(folder / name, tensors, {"format": "pt"})
    places = {name: shard for shard, tensors in shards.items() for name in tensors}
    about = {"metadata": {"total_size": 0}, "weight_map": places, **fields}
    (folder / index).write_text(json.dumps(about))
    return folder


def matrices(names, shape=(64, 128)):
    generator = np.random.default_rng(len(names))
    return {name: generator.standard_normal(shape).astype(np.float32) for name in names}


@pytest.fixture
def shards():
    first, second, third = matrices(["a.weight", "b.weight"]), matrices(["c.weight"]), {}
    third["bias"] = np.arange(7, dtype=np.float32)
    third["scale"] = weights.RawTensor("F4", (4, 4), np.arange(8, dtype=np.uint8))
    names = [f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)]
    return dict(zip(names, (first, second, third), strict=True))


@pytest.fixture
def source(shards, tmp_path):
    return write(tmp_path / "source", shards)


def every(shards):
    return {name: each for tensors in shards.values() for name, each in tensors.items()}


def same(a, b):
    kinds = isinstance(a, weights.RawTensor), isinstance(b, weights.RawTensor)
    a, b = (x.data if isinstance(x, weights.RawTensor) else x for x in (a, b))
    return kinds[0] == kinds[1] and a.dtype == b.dtype and np.array_equal(a, b)


@pytest.mark.parametrize("name", ["", INDEX])
def test_a_checkpoint_is_opened_by_its_index_or_its_folder(name, source, shards):
    with weights.open(source / name) as file:
        assert isinstance(file, weights.Shards)
        expected = every(shards)
        assert list(file) == list(expected)
        assert len(file) == len(expected)
        assert all(same(file[name], tensor) for name, tensor in expected.items())
        assert file.metadata == {"format": "pt"}
        assert sorted(file.files) == sorted(shards)
        assert file.kind("scale") == ("F4", (4, 4))
        assert "d.weight" not in file
        assert file.kind("d.weight") is None
        with pytest.raises(KeyError):
            file["d.weight"]


def test_a_folder_with_one_file_is_that_file(tmp_path):
    weights.save(tmp_path / "anything.safetensors", matrices(["a"]))
    with weights.open(tmp_path) as file:
        assert isinstance(file, weights.File)
    weights.save(tmp_path / "other.safetensors", matrices(["a"]))
    with pytest.raises(
        ValueError, match=r"has anything\.safetensors, other\.safetensors: name the"
    ):
        weights.open(tmp_path)
    weights.save(tmp_path / "model.safetensors", matrices(["b"]))
    with weights.open(tmp_path) as file:
        assert list(file) == ["b"]


def test_an_index_of_another_name_is_found(shards, tmp_path):
    write(tmp_path / "unet", shards, index="diffusion_model.safetensors.index.json")
    with weights.open(tmp_path / "unet") as file:
        assert list(file) == list(every(shards))


def test_a_folder_without_a_checkpoint_is_said(tmp_path):
    with pytest.raises(ValueError, match=r"has no \*\.safetensors: name the file"):
        weights.open(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(ValueError, match=r"has no \*\.safetensors, but pytorch_model\.bin"):
        weights.open(tmp_path)


# The commands.


def contents(folder):
    return {each.name: each.read_bytes() for each in folder.iterdir()}


@pytest.mark.parametrize("name", ["", INDEX])
def test_a_checkpoint_is_packed_listed_and_unpacked(name, source, shards, tmp_path, capsys):
    packed, plain = tmp_path / "packed", tmp_path / "plain"
    assert run(
        "pack", source / name, packed / name if name else packed, "--max-shard-size", "10KB"
    ) == (1 if name else 0)  # folders are made, parents of files are not
    if name:
        packed.mkdir()
        assert run("pack", source / name, packed / name, "--max-shard-size", "10KB") == 0
    assert "packed 3 of 5 tensors" in capsys.readouterr().out
    index = json.loads((packed / INDEX).read_text())
    names = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    assert sorted(each.name for each in packed.iterdir()) == [*names, INDEX]
    assert [*index["weight_map"]] == sorted(every(shards))
    assert {*index["weight_map"].values()} == {*names}
    with weights.open(packed) as file:
        sizes = [sum(b - a for a, b in each.stored().values()) for each in file.files.values()]
        assert index["metadata"]["total_size"] == sum(sizes)
        assert max(sizes) <= 10_000
    assert run("inspect", packed / name) == 0
    assert "5 tensors, 3 packed" in capsys.readouterr().out
    assert run("unpack", packed, plain) == 0
    with weights.open(packed) as file, weights.open(plain) as found:
        assert [*plain.iterdir()] == [*plain.glob("model*")]
        for name, tensor in file.items():
            expected = tensor.unpack() if isinstance(tensor, weights.Packed) else tensor
            assert same(found[name], expected)
        assert found.metadata == {"format": "pt"}


def test_a_checkpoint_is_sharded_as_before_or_becomes_one_file_of_a_name(source, tmp_path):
    assert run("pack", source, tmp_path / "folder") == 0
    assert sorted(contents(tmp_path / "folder")) == ["model-00001-of-00001.safetensors", INDEX]
    assert run("pack", source, tmp_path / "one.safetensors") == 0
    assert run("pack", source, tmp_path / "more.safetensors", "--max-shard-size", "10KB") == 0
    assert sorted(each.name for each in tmp_path.iterdir() if each.is_file()) == [
        "more-00001-of-00002.safetensors",
        "more-00002-of-00002.safetensors",
        "more.safetensors.index.json",
        "one.safetensors",
    ]
    with (
        weights.open(tmp_path / "one.safetensors") as one,
        weights.open(tmp_path / "more.safetensors.index.json") as more,
    ):
        assert isinstance(one, weights.File)
        assert list(one) == list(more)
        assert all(bytes(one[n].frame) == bytes(more[n].frame) for n in ("a.weight", "c.weight"))


@pytest.mark.parametrize("name", ["", INDEX])
def test_a_lossless_checkpoint_comes_back_byte_for_byte(name, source, tmp_path, capsys):
    small, back = tmp_path / "small", tmp_path / "back"
    small.mkdir()
    assert run("pack", "--lossless", source / name, small / name) == 0
    assert "5 tensors, 0.10 MB" in capsys.readouterr().out
    assert sorted(contents(small)) == sorted(contents(source))
    assert contents(small) != contents(source)
    assert run("unpack", small / name, back) == 0
    assert contents(back) == contents(source)
    assert run("unpack", small, back, "--dtype", "float16") == 1
    assert "restores the original" in capsys.readouterr().err


def test_a_checkpoint_may_be_packed_in_its_place(source, tmp_path):
    before = contents(source)
    assert run("pack", "--lossless", source, source) == 0
    assert run("unpack", source, source) == 0
    assert contents(source) == before
    assert run("pack", source, source) == 0
    # Nothing of the shards that were there before is left.
    assert sorted(contents(source)) == ["model-00001-of-00001.safetensors", INDEX]


def test_an_index_that_is_replaced_cannot_have_other_files_removed(source, tmp_path):
    target = tmp_path / "target"
    target.mkdir()
    (target / "config.json").write_text("{}")
    places = {"x": "config.json", "y": "model-00001-of-00009.safetensors"}
    (target / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": places}))
    (target / places["y"]).write_bytes(b"stale")
    assert run("pack", source, target) == 0
    assert sorted(contents(target)) == [
        "config.json",
        "model-00001-of-00001.safetensors",
        INDEX,
    ]


def test_what_lossless_shards_cannot_be_is_said(source, tmp_path, capsys):
    weights.save(tmp_path / "base", {})
    for options, message in (
        (["--base", tmp_path / "base", tmp_path / "out"], "has no base: give --base for its files"),
        ([tmp_path / "out.safetensors"], "each of the 3 shards stays one file: write to a folder"),
    ):
        assert run("pack", "--lossless", source, *options) == 1
        assert message in capsys.readouterr().err
    assert sorted(each.name for each in tmp_path.iterdir()) == ["base", "source"]


def test_a_checkpoint_that_cannot_be_packed_leaves_nothing(source, shards, tmp_path, capsys):
    last = sorted(shards)[-1]
    weights.save(source / last, {**shards[last], "bias": np.full((64, 128), np.nan, "f4")})
    before = contents(source)
    for target in (tmp_path / "new", source, tmp_path / "x.safetensors"):
        assert run("pack", source, target, "--max-shard-size", "10KB") == 1
        assert "'bias'" in capsys.readouterr().err
    assert contents(source) == before
    assert [*tmp_path.iterdir()] == [source]


STOPPED = """
    import os, signal, sys
    from pathlib import Path
    from gradwire.weights import save
    from gradwire.weights.shards import Target

    def write(path, part):
        save(path, part)
        if sys.argv[2] == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        print("saving", flush=True)
        sys.stdin.read()

    source = type("Source", (), {"path": "model.safetensors"})
    Target(sys.argv[1], source).write([{}], write)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="has no locks that tell")
def test_what_a_killed_writer_of_shards_left_is_removed_by_the_next_and_nothing_else(
    source, tmp_path
):
    folder = tmp_path / "packed"
    command = [sys.executable, "-c", textwrap.dedent(STOPPED), folder]
    subprocess.run([*command, "kill"], check=False)
    left = {*folder.iterdir()}
    (staged,) = (each for each in left if each.is_dir())
    assert [each.name for each in staged.iterdir()] == ["00001"]
    # Another process is writing, after it has removed what was left.
    with subprocess.Popen(
        [*command, "wait"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as writing:
        assert writing.stdout.readline() == b"saving\n"
        busy = {*folder.iterdir()}
        assert not busy & left
        assert run("pack", source, folder) == 0
        assert busy < {*folder.iterdir()}
        assert (folder / INDEX).exists()
        writing.communicate()
        assert writing.returncode == 0
    assert not [each for each in os.listdir(folder) if each.startswith(".")]


@pytest.mark.parametrize(
    ("text", "size"),
    [("5GB", 5 * 10**9), ("1.5 kb", 1500), ("200MB", 2 * 10**8), ("1TB", 10**12), ("77", 77)],
)
def test_sizes_are_read_as_transformers_reads_them(text, size):
    assert size_of(text) == size


@pytest.mark.parametrize("text", ["", "GB", "5XB", "-5GB", "0", "0.1", "5GB5", "nan", "1e3GB"])
def test_what_is_no_size_is_refused(text, source, tmp_path, capsys):
    with pytest.raises(ValueError, match="such as 5GB or 200MB, got"):
        size_of(text)
    if text and not text.startswith("-"):
        assert run("pack", source, tmp_path / "out", "--max-shard-size", text) == 1
        assert "such as 5GB or 200MB" in capsys.readouterr().err
        assert not (tmp_path / "out").exists()


def test_shards_are_filled_in_order_and_a_larger_tensor_is_alone():
    sizes = [("a", 4), ("b", 6), ("c", 1), ("d", 30), ("e", 2), ("f", 8), ("g", 0)]
    found = [[*part] for part in split(sizes, 10, int)]
    assert found == [["a", "b"], ["c"], ["d"], ["e", "f", "g"]]
    assert [*split([], 10, int)] == [{}]


# Hostile and damaged ones.


def place(name, shard):
    return lambda about: about["weight_map"].update({name: shard})


INDICES = {
    "parent": (place("a.weight", "../model.safetensors"), "'a.weight': .* no file of its folder"),
    "absolute": (place("a.weight", "/etc/passwd"), "'a.weight': .* no file of its folder"),
    "below": (place("a.weight", "x/y.safetensors"), "'a.weight': .* no file of its folder"),
    "backslash": (place("a.weight", "..\\y.safetensors"), "no file of its folder"),
    "dots": (place("a.weight", ".."), "no file of its folder"),
    "empty": (place("a.weight", ""), "no file of its folder"),
    "null byte": (place("a.weight", "a\0b"), "no file of its folder"),
    "newline": (place("a.weight", "a\nb"), "no file of its folder"),
    "surrogate": (place("a.weight", "a\ud800"), "no file of its folder|surrogates not allowed"),
    "number": (place("a.weight", 3), "no file of its folder"),
    "missing shard": (
        place("a.weight", "model-00009-of-00003.safetensors"),
        "shard 'model-00009-of-00003.safetensors' is not in the folder of its index",
    ),
    "another shard": (
        place("a.weight", "model-00002-of-00003.safetensors"),
        "'a.weight': the index says that it is in .*00002.*, but it is in .*00001",
    ),
    "not there": (
        place("z", "model-00002-of-00003.safetensors"),
        "'z': the index says .* but it is missing",
    ),
    "not listed": (
        lambda about: about["weight_map"].pop("a.weight") and None,
        "'a.weight': it is in .*00001.*, but not in the index",
    ),
    "metadata a list": (lambda about: about.update(metadata=[]), "the metadata of the index is"),
    "size a text": (
        lambda a: a.update(metadata={"total_size": "5GB"}),
        "the metadata of the index",
    ),
    "size below 0": (lambda a: a.update(metadata={"total_size": -1}), "the metadata of the index"),
    "size infinite": (lambda a: a.update(metadata={"total_size": 1e400}), "Infinity is no number"),
    "size nan": (
        lambda a: a.update(metadata={"total_size": float("nan")}),
        "NaN is no number",
    ),
}


@pytest.mark.parametrize("case", INDICES)
def test_an_index_that_does_not_fit_is_refused_when_it_is_opened(case, source):
    change, message = INDICES[case]
    about = json.loads((source / INDEX).read_text())
    change(about)
    (source / INDEX).write_text(json.dumps(about))
    with pytest.raises(CorruptFileError, match=message):
        weights.open(source)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "the index is not JSON"),
        ("[]", "the index is not a JSON object"),
        ('{"weight_map": {"a": "x", "a": "y"}}', "a name occurs twice"),
        ("[" * 100_000, "the index is not JSON"),
        ('{"a": 1}', "JSON without a weight_map"),
        ('{"weight_map": []}', "JSON without a weight_map"),
    ],
)
def test_what_is_no_index_is_refused(text, message, tmp_path):
    (tmp_path / INDEX).write_text(text)
    with pytest.raises(ValueError, match=message):
        weights.open(tmp_path)


def test_an_index_of_total_sizes_that_others_count_otherwise_is_read(source):
    for size in (1, 1.5e10, 0):
        about = json.loads((source / INDEX).read_text())
        (source / INDEX).write_text(json.dumps({**about, "metadata": {"total_size": size}}))
        weights.open(source).close()
    about.pop("metadata")
    (source / INDEX).write_text(json.dumps(about))
    weights.open(source).close()


def test_a_tensor_in_two_shards_is_refused(source, shards):
    names = sorted(shards)
    weights.save(source / names[1], {**shards[names[1]], "a.weight": np.zeros(3)})
    with pytest.raises(CorruptFileError, match=r"'a\.weight': it is in two shards, .*1-of.*2-of"):
        weights.open(source)


def test_a_shard_that_is_damaged_is_named(source, shards):
    name = sorted(shards)[1]
    whole = (source / name).read_bytes()
    (source / name).write_bytes(whole[:-3])
    with pytest.raises(CorruptFileError, match=f"the shard '{name}': tensors end at"):
        weights.open(source)
    (source / name).write_bytes(b"\x80\x02pickle")
    with pytest.raises(ValueError, match=f"the shard '{name}': it is not .* but a pickle"):
        weights.open(source)
    (source / name).unlink()
    (source / name).mkdir()
    with pytest.raises(OSError, match=name):
        weights.open(source)


def test_shards_of_links_are_read(source, shards, tmp_path):
    (tmp_path / "blobs").mkdir()
    for i, name in enumerate((*shards, INDEX)):  # as a cache of downloads has them
        (source / name).rename(tmp_path / "blobs" / str(i))
        (source / name).symlink_to(f"../blobs/{i}")
    with weights.open(source / INDEX) as file:
        assert list(file) == list(every(shards))


@pytest.mark.timeout(20)
def test_a_pipe_is_no_index(tmp_path):
    os.mkfifo(tmp_path / INDEX)
    with pytest.raises(OSError, match="not a regular file"):
        weights.open(tmp_path / INDEX)


def test_all_files_are_closed_where_a_shard_is_refused(source, shards):
    before = len(os.listdir("/proc/self/fd"))
    (source / sorted(shards)[-1]).unlink()
    for _ in range(10):
        with pytest.raises(CorruptFileError):
            weights.open(source)
    assert len(os.listdir("/proc/self/fd")) == before
