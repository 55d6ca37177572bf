"""`gradwire pack`, `gradwire unpack`, and `gradwire inspect` of such files."""

import json

import ml_dtypes
import numpy as np
import pytest

from gradwire import weights
from gradwire.cli import main


@pytest.fixture
def arrays():
    numbers = np.random.default_rng(3)
    return {
        "head.weight": numbers.normal(size=(64, 128)).astype(np.float32),
        "body.weight": numbers.normal(size=(64, 64)).astype(ml_dtypes.bfloat16),
        "small.weight": numbers.normal(size=(8, 8)).astype(np.float32),
        "norm.bias": numbers.normal(size=5000).astype(np.float32),
        "odd.weight": numbers.normal(size=(97, 97)).astype(np.float32),
        "steps": np.arange(9000).reshape(90, 100),
    }


@pytest.fixture
def source(arrays, tmp_path):
    path = tmp_path / "in.safetensors"
    weights.save(path, arrays, {"made": "here"})
    return path


@pytest.fixture
def target(tmp_path):
    return tmp_path / "out.safetensors"


def bits(path):
    with weights.open(path) as file:
        return {n: t.bits for n, t in file.items() if isinstance(t, weights.Packed)}


def test_large_matrices_of_floats_are_packed_and_all_else_is_copied(arrays, source, target, capsys):
    assert main(["pack", str(source), str(target)]) == 0
    assert bits(target) == {"head.weight": 4, "body.weight": 4}
    with weights.open(target) as file:
        assert list(file) == list(arrays)
        assert file.metadata == {"made": "here"}
        for name in set(arrays) - {"head.weight", "body.weight"}:
            assert file[name].dtype == arrays[name].dtype
            assert np.array_equal(file[name], arrays[name])
        assert file["head.weight"].error(arrays["head.weight"]) < 0.1
    out = capsys.readouterr().out
    assert out.startswith("packed 2 of 6 tensors: 0.")
    assert " bits a weight; mean error " in out


def test_the_first_rule_that_matches_decides(source, target):
    rules = "norm.bias=3,body*=no,*.weight=8"
    assert main(["pack", str(source), str(target), "--rules", rules]) == 0
    assert bits(target) == {"norm.bias": 3, "head.weight": 8}


def test_a_rule_that_names_no_tensor_is_an_error_and_writes_nothing(source, target, capsys):
    assert main(["pack", str(source), str(target), "--rules", "haed*=8"]) == 1
    assert "'haed*'" in capsys.readouterr().err
    assert not target.exists()


@pytest.mark.parametrize(
    "options",
    [
        ["--bits", "9"],
        ["--block", "0"],
        ["--rules", "head"],
        ["--rules", "head=some"],
        ["--more", "5"],
        ["--more", "4", "--fit", "zero"],
    ],
)
def test_options_that_are_not_possible_are_refused_before_a_file_is_read(options, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["pack", "nowhere", "out", *options])
    assert ended.value.code == 2
    assert "nowhere" not in capsys.readouterr().err.splitlines()[-1]


def test_a_value_that_is_not_finite_is_an_error_that_names_the_tensor(
    arrays, source, target, capsys
):
    arrays["head.weight"][1, 1] = np.nan
    weights.save(source, arrays)
    assert main(["pack", str(source), str(target)]) == 1
    assert "'head.weight'" in capsys.readouterr().err
    assert not target.exists()


@pytest.mark.parametrize("dtype", [None, "float32", "float16", "bfloat16"])
def test_unpack_gives_floats_of_the_dtype_they_had_or_another(arrays, source, target, dtype):
    assert main(["pack", str(source), str(target)]) == 0
    with weights.open(target) as file:
        expected = {n: t.unpack() for n, t in file.items() if isinstance(t, weights.Packed)}
    assert main(["unpack", str(target), str(target), *(["--dtype", dtype] if dtype else [])]) == 0
    with weights.open(target) as file:
        for name, array in arrays.items():
            wanted = dtype or array.dtype.name if name in expected else array.dtype.name
            assert file[name].dtype.name == wanted
            values = expected.get(name, array).astype(array.dtype if dtype is None else wanted)
            assert np.array_equal(file[name], values)


def test_further_bits_are_written_and_left_out_where_few_are_asked_for(arrays, source, target):
    assert main(["pack", str(source), str(target), "--more", "4"]) == 0
    assert bits(target) == {"head.weight": 8, "body.weight": 8}
    errors = {}
    for held in ("4", "8"):
        floats = target.with_name(held)
        assert main(["unpack", str(target), str(floats), "--bits", held]) == 0
        with weights.open(floats) as file:
            lost = file["head.weight"] - arrays["head.weight"]
        errors[held] = np.abs(lost).mean()
    assert errors["8"] < errors["4"] / 10
    assert main(["unpack", str(target), str(target), "--bits", "5"]) == 1


def test_inspect_lists_the_tensors_of_a_file(source, target, capsys):
    main(["pack", str(source), str(target)])
    capsys.readouterr()
    assert main(["inspect", str(target)]) == 0
    out = capsys.readouterr().out
    assert "6 tensors, 2 packed" in out
    assert "64 x 128" in out
    assert main(["inspect", "--json", str(target)]) == 0
    assert '"block": 64' in json.dumps(json.loads(capsys.readouterr().out))


@pytest.mark.parametrize("command", ["pack", "unpack"])
def test_a_file_that_is_missing_or_none_is_an_error_of_one_line(command, target, tmp_path, capsys):
    other = tmp_path / "text"
    other.write_text("not a file of tensors")
    for path in (tmp_path / "missing", other, tmp_path):
        assert main([command, str(path), str(target)]) == 1
        assert capsys.readouterr().err.count("\n") == 1
        assert not target.exists()
