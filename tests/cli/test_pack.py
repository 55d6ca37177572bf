"""`gradwire pack`, `gradwire unpack`, and `gradwire inspect` of their files."""

import json
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

from gradwire import weights
from gradwire.cli import main
from gradwire.quantize import Affine


@pytest.fixture(scope="module")
def model():
    random = np.random.default_rng(5)
    return {
        "embed.weight": random.normal(size=(64, 128)).astype(np.float32),
        "layers.0.weight": random.normal(size=(128, 64)).astype(ml_dtypes.bfloat16),
        "layers.0.norm.weight": np.ones(8192, np.float32),
        "head.weight": random.normal(size=(96, 64)).astype(np.float32),
        "odd.weight": random.normal(size=(64, 127)).astype(np.float32),
        "few.weight": random.normal(size=(8, 64)).astype(np.float32),
        "ids": np.arange(8192).reshape(64, 128),
        "none.weight": np.zeros((0, 8), np.float32),
    }


@pytest.fixture
def source(model, tmp_path):
    path = tmp_path / "model.safetensors"
    weights.save(path, model, {"format": "pt"})
    return path


@pytest.fixture
def target(tmp_path):
    return tmp_path / "small.safetensors"


def run(*arguments) -> int:
    return main([str(each) for each in arguments])


def test_matrices_are_packed_and_the_rest_is_copied(model, source, target, capsys):
    assert run("pack", source, target) == 0
    before = sum(array.nbytes for array in model.values())
    after = before - 4 * (64 * 128 + 96 * 64) - 2 * 128 * 64
    after += 3 * 56 + (64 * 128 + 96 * 64 + 128 * 64) * 9 // 16
    out = capsys.readouterr().out
    assert out.startswith(
        f"packed 3 of 8 tensors: {before / 1e6:.2f} MB -> {after / 1e6:.2f} MB, 4.56 bits a weight;"
        " mean error 8."
    )
    with weights.open(target) as file:
        assert file.metadata == {"format": "pt"}
        assert list(file) == list(model)
        for name, array in model.items():
            packed = name in ("embed.weight", "layers.0.weight", "head.weight")
            assert isinstance(file[name], weights.Packed) == packed
            if packed:
                expected = weights.pack(array, Affine(4, 64))
                assert bytes(file[name].frame) == bytes(expected.frame)
                assert file[name].dtype == array.dtype.name
            else:
                assert file[name].dtype == array.dtype
                np.testing.assert_array_equal(file[name], array)


def test_progress_is_told_to_a_terminal(source, target, capsys, monkeypatch):
    assert run("pack", source, target) == 0
    assert not capsys.readouterr().err
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    assert run("pack", source, target) == 0
    *told, rest = capsys.readouterr().err.split("\r")
    assert "gradwire pack: 100% writing" in [each.rstrip() for each in told]
    assert max(map(len, told)) < 80
    assert told[-1].strip() == rest == ""  # the line is empty again


def test_the_first_rule_that_matches_counts(source, target):
    rules = "head*=8,embed.weight=no,layers.0.norm.weight=5,*.weight=3"
    assert run("pack", source, target, "--rules", rules, "--block", 32, "--fit", "range") == 0
    with weights.open(target) as file:
        bits = {name: t.bits for name, t in file.items() if isinstance(t, weights.Packed)}
        assert bits == {"head.weight": 8, "layers.0.norm.weight": 5, "layers.0.weight": 3}
        assert file["head.weight"].block == 32


@pytest.mark.parametrize("rule", ["haed*=8", "HEAD*=8", "head.weight.more.0=no"])
def test_a_rule_that_names_no_tensor_is_an_error(rule, source, target, capsys):
    assert run("pack", source, target, "--rules", f"head*=2,{rule}") == 1
    assert f"no tensor is called '{rule.split('=')[0]}'" in capsys.readouterr().err
    assert not target.exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--bits", "0"], "bits must be at least 1, got 0"),
        (["--bits", "9"], "bits must be at most 8, got 9"),
        (["--bits", "4.5"], "invalid int value: '4.5'"),
        (["--block", "0"], "block must be at least 1, got 0"),
        (["--block", str(2**32)], "block must be at most"),
        (["--more", "5"], "4 bits and 5 further ones must add up to 2 to 8"),
        (["--more", "4", "--fit", "zero"], 'they need fit="range"'),
        (["--rules", "head"], "--rules are NAME=BITS or NAME=no, got 'head'"),
        (["--rules", "head=x"], "--rules are NAME=BITS or NAME=no, got 'head=x'"),
        (["--rules", "head=9"], "bits must be at most 8, got 9"),
    ],
)
def test_wrong_options_are_exit_code_2(options, message, source, target, capsys):
    with pytest.raises(SystemExit) as caught:
        run("pack", source, target, *options)
    assert caught.value.code == 2
    assert message in capsys.readouterr().err
    assert not target.exists()


def test_what_is_not_finite_or_packed_already_is_named_and_nothing_is_written(
    model, source, target, capsys
):
    assert run("pack", source, target) == 0
    before = target.read_bytes()
    assert run("pack", target, target) == 1
    assert "'embed.weight' is already packed; unpack the file first" in capsys.readouterr().err
    weights.save(source, model | {"head.weight": np.full((96, 64), np.nan, np.float32)})
    assert run("pack", source, target) == 1
    assert "tensor 'head.weight' has 6144 non-finite" in capsys.readouterr().err
    assert target.read_bytes() == before


def test_a_file_may_be_packed_in_its_place(source, target):
    assert run("pack", source, target) == 0
    assert run("pack", source, source) == 0
    assert source.read_bytes() == target.read_bytes()
    assert run("unpack", source, source) == 0
    assert run("unpack", target, target) == 0
    assert source.read_bytes() == target.read_bytes()


@pytest.mark.parametrize("command", ["pack", "unpack", "inspect"])
@pytest.mark.parametrize("data", [None, b"", b"hello world", b"\x10" + 7 * b"\0" + b"{" * 16])
def test_what_is_no_file_of_tensors_is_exit_code_1(command, data, source, target, capsys):
    source.unlink()
    if data is not None:
        source.write_bytes(data)
    outs = [] if command == "inspect" else [target]
    assert run(command, source, *outs) == 1
    err = capsys.readouterr().err
    assert err.startswith(f"gradwire {command}: ")
    assert str(source) in err
    assert ("No such file" if data is None else "corrupt file") in err
    assert not target.exists()


@pytest.mark.parametrize("command", ["pack", "unpack"])
def test_a_target_that_cannot_be_written_is_exit_code_1(command, source, tmp_path, capsys):
    target = tmp_path / "none" / "small"
    assert run(command, source, target) == 1
    assert str(target) in capsys.readouterr().err
    assert [*tmp_path.iterdir()] == [source]


@pytest.mark.parametrize("options", [(), ("--lossless",)])
def test_a_folder_gets_a_file_of_the_name_of_the_source(options, source, tmp_path):
    for name in ("packed", "plain"):
        (tmp_path / name).mkdir()
    assert run("pack", source, tmp_path / "packed", *options) == 0
    assert run("unpack", tmp_path / "packed", tmp_path / "plain") == 0
    for name in ("packed", "plain"):
        assert [*(tmp_path / name).iterdir()] == [tmp_path / name / "model.safetensors"]


@pytest.mark.parametrize("dtype", [None, "float32", "float16", "bfloat16"])
def test_unpacked_weights_are_what_the_packed_ones_decode_to(model, source, target, dtype):
    back = target.with_name("back.safetensors")
    assert run("pack", source, target) == 0
    assert run("unpack", target, back, *([] if dtype is None else ["--dtype", dtype])) == 0
    with weights.open(target) as packed, weights.open(back) as file:
        assert file.metadata == {"format": "pt"}
        assert list(file) == list(model)
        for name, tensor in packed.items():
            if isinstance(tensor, weights.Packed):
                kind = np.dtype(getattr(ml_dtypes, dtype or tensor.dtype, dtype or tensor.dtype))
                assert file[name].dtype == kind
                np.testing.assert_array_equal(file[name], tensor.unpack().astype(kind))
            else:
                assert file[name].dtype == tensor.dtype
                np.testing.assert_array_equal(file[name], tensor)


def test_floats_that_a_narrow_dtype_cannot_hold_are_an_error(tmp_path, capsys):
    """float16 ends at 65,504, and 65,520 is infinite; bfloat16 holds all that a grid reaches."""
    source, target = tmp_path / "in.safetensors", tmp_path / "out.safetensors"
    values = np.full((2, 64), 7e4, np.float32)
    weights.save(source, {"w": weights.pack(values, Affine(4, 64))})
    assert run("unpack", "--dtype", "float16", source, target) == 1
    err = capsys.readouterr().err
    assert "'w' has magnitudes up to 7e+04, which float16 cannot hold: give another" in err
    assert not target.exists()
    for options in ([], ["--dtype", "bfloat16"]):
        assert run("unpack", *options, source, target) == 0
        with weights.open(target) as file:
            np.testing.assert_allclose(file["w"].astype(np.float32), values, rtol=0.01)


def test_a_file_is_packed_into_a_pipe_without_other_words(source, tmp_path):
    for options in ([], ["--lossless"]):
        command = [sys.executable, "-m", "gradwire", "pack", *options, source, "/dev/stdout"]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
        (tmp_path / "out").write_bytes(done.stdout)
        with weights.open(tmp_path / "out") as file, weights.open(source) as before:
            assert list(file) == list(before)


def test_further_bits_can_be_left_out(model, source, target, capsys):
    back = target.with_name("back.safetensors")
    assert run("pack", source, target, "--more", 4) == 0
    expected = weights.pack(model["head.weight"], Affine(4, 64, fit="range"), more=(4,))
    for options, bits in ([], 8), (["--bits", 8], 8), (["--bits", 4], 4):
        assert run("unpack", target, back, *options) == 0
        with weights.open(back) as file:
            np.testing.assert_array_equal(file["head.weight"], expected.unpack(bits=bits))
    capsys.readouterr()
    assert run("unpack", target, back, "--bits", 5) == 1
    assert "'embed.weight': bits must be 4 and 8, which the tensor holds" in capsys.readouterr().err


def test_inspect_lists_the_tensors(model, source, target, capsys):
    assert run("pack", source, target, "--rules", "head*=8") == 0
    capsys.readouterr()
    assert run("inspect", target) == 0
    head, names, *lines = capsys.readouterr().out.splitlines()
    assert head.startswith(f"{target}: 8 tensors, 3 packed, ")
    assert names.split() == ["tensor", "shape", "dtype", "bits", "block", "bytes", "error"]
    assert [line.split()[0] for line in lines] == list(model)
    (line,) = (line for line in lines if "head" in line)
    assert line.split()[1:-1] == ["96", "x", "64", "float32", "8", "64", "6,584"]
    assert 0 < float(line.split()[-1].removesuffix("%")) < 1


def test_inspect_prints_json(source, target, capsys):
    assert run("pack", source, target, "--more", 3) == 0
    capsys.readouterr()
    assert run("inspect", "--json", target) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    with weights.open(target) as file:
        packed = file["embed.weight"]
        assert rows["embed.weight"] == {
            "name": "embed.weight",
            "shape": [64, 128],
            "dtype": "float32",
            "bits": 7,
            "block": 64,
            "error": packed.error(),
            "nbytes": packed.nbytes,
        }
    assert rows["ids"] == {"name": "ids", "shape": [64, 128], "dtype": "int64", "nbytes": 65536}


@pytest.mark.parametrize("part", ["frame", "further"])
def test_inspect_finds_what_is_corrupt(part, source, target, capsys):
    assert run("pack", source, target, "--more", 4) == 0
    with weights.open(target) as file:
        piece = bytes(getattr(file["head.weight"], part))
    data = bytearray(target.read_bytes())
    data[data.index(piece) + 100] ^= 1
    target.write_bytes(data)
    capsys.readouterr()
    assert run("inspect", target) == 1
    err = capsys.readouterr().err
    assert "checksum" in err
    assert "head.weight" in err


def gram_of(seed, cols):
    x = np.random.default_rng(seed).normal(size=(300, cols)).cumsum(axis=1)
    return weights.Gram(x.T @ x, 300, x.mean(axis=0))


@pytest.fixture
def grams(tmp_path):
    path = tmp_path / "grams.safetensors"
    weights.save_grams(path, {"head.weight": gram_of(1, 64)})
    return path


def test_codes_are_chosen_by_a_calibration_where_it_has_one(model, source, target, grams):
    assert run("pack", source, target, "--bits", 3, "--calibration", grams) == 0
    affine, head = Affine(3, 64), model["head.weight"]
    chosen = weights.pack(head, affine, gram=gram_of(1, 64))
    assert bytes(chosen.frame) != bytes(weights.pack(head, affine).frame)
    with weights.open(target) as file:
        assert bytes(file["head.weight"].frame) == bytes(chosen.frame)
        nearest = weights.pack(model["embed.weight"], affine)
        assert bytes(file["embed.weight"].frame) == bytes(nearest.frame)


def test_a_calibration_that_cannot_be_used_is_named(source, target, grams, tmp_path, capsys):
    for found, message in (
        ({"heads.weight": gram_of(1, 64)}, "the calibration is for another model: no 'heads.w"),
        ({"head.weight": gram_of(1, 32)}, "'head.weight' has shape"),
    ):
        weights.save_grams(grams, found)
        assert run("pack", source, target, "--calibration", grams) == 1
        assert f"{source}: {message}" in capsys.readouterr().err
    assert run("pack", source, target, "--calibration", tmp_path / "none") == 1
    assert f"{tmp_path / 'none'}: No such file" in capsys.readouterr().err
    assert run("pack", source, target, "--calibration", source) == 1
    assert f"{source}: corrupt file: it holds no Gram matrices" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        run("pack", source, target, "--calibration", grams, "--more", 4)
    assert "leave out more= or --calibration=" in capsys.readouterr().err
    assert not target.exists()


def moved(model):
    """A step later."""
    return {name: array + array.dtype.type(1e-4) for name, array in model.items()}


def test_a_lossless_file_and_a_difference_come_back_byte_for_byte(model, source, tmp_path, capsys):
    small, after = tmp_path / "small.safetensors", tmp_path / "after.safetensors"
    difference, back = tmp_path / "difference.safetensors", tmp_path / "back.safetensors"
    weights.save(after, moved(model), {"format": "pt"})
    assert run("pack", "--lossless", source, small) == 0
    share = 100 * small.stat().st_size / source.stat().st_size
    before, now = source.stat().st_size / 1e6, small.stat().st_size / 1e6
    expected = f"8 tensors, {before:.2f} MB -> {now:.2f} MB ({share:.1f} %), exact\n"
    assert capsys.readouterr().out == expected
    assert run("pack", "--lossless", "--base", source, after, difference) == 0
    assert difference.stat().st_size < small.stat().st_size
    capsys.readouterr()
    assert run("inspect", difference) == 0
    assert "8 tensors, 0 packed, 6 coded" in capsys.readouterr().out
    assert run("inspect", "--json", difference) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["embed.weight"]["coding"] == "difference"
    assert rows["embed.weight"]["nbytes"] < model["embed.weight"].nbytes
    assert "coding" not in rows["ids"]
    for coded, original in ((small, source), (difference, after)):
        assert run("unpack", coded, back) == 0
        assert back.read_bytes() == original.read_bytes()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--base", "x"], "--base requires --lossless"),
        (["--lossless", "--bits", "3"], "leave out --bits"),
        (["--lossless", "--rules", "a=3"], "leave out --rules"),
    ],
)
def test_options_that_lose_bits_go_without_lossless(options, message, source, target, capsys):
    with pytest.raises(SystemExit) as exit:
        run("pack", *options, source, target)
    assert exit.value.code == 2
    assert message in capsys.readouterr().err
    assert not target.exists()


def test_what_a_difference_lacks_is_said_in_a_line(source, tmp_path, capsys):
    target = tmp_path / "difference.safetensors"
    back = tmp_path / "back"
    assert run("pack", "--lossless", "--base", tmp_path / "none", source, target) == 1
    assert "none: No such file" in capsys.readouterr().err
    assert run("pack", "--lossless", "--base", source, source, target) == 0
    assert run("pack", "--lossless", target, back) == 1
    assert "already packed" in capsys.readouterr().err
    assert run("unpack", "--dtype", "float16", target, back) == 1
    assert "leave out --dtype" in capsys.readouterr().err
    source.rename(tmp_path / "moved")
    assert run("unpack", target, back) == 1
    assert "its base 'model.safetensors' cannot be read" in capsys.readouterr().err
    (tmp_path / "moved").rename(source)
    data = bytearray(source.read_bytes())
    data[-1] ^= 1
    source.write_bytes(data)
    assert run("unpack", target, back) == 1
    assert "SHA-256" in capsys.readouterr().err
    assert not back.exists()
