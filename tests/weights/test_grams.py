"""Gram matrices: what they check, merging, and files of them."""

import json

import numpy as np
import pytest

from gradwire import quantize, weights
from gradwire.errors import CorruptFileError
from gradwire.weights import Gram, load_grams, save_grams
from gradwire.weights.gram import KEY


def gram_of(x: np.ndarray) -> Gram:
    return Gram(x.T @ x, len(x), x.mean(0))


def inputs(rows: int, cols: int = 6, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, cols)) + 0.5


def grouped() -> Gram:
    every = [gram_of(inputs(9, seed=seed)) for seed in range(3)]
    return Gram(np.stack([g.matrix for g in every]), 9, np.stack([g.mean for g in every]))


def same(a: Gram, b: Gram) -> bool:
    return (
        a.count == b.count
        and a.matrix.tobytes() == b.matrix.tobytes()
        and a.mean.tobytes() == b.mean.tobytes()
        and a.matrix.shape == b.matrix.shape
    )


def written(tmp_path, matrix=None, mean=None, counts=None, about=None):
    """A file with one matrix, named layer, in which something may be wrong."""
    good = gram_of(inputs(8, 3))
    arrays = {
        "gram.layer": good.matrix if matrix is None else matrix,
        "mean.layer": good.mean if mean is None else mean,
    }
    about = {"version": 1, "counts": {"layer": 8} if counts is None else counts} | (about or {})
    weights.save(tmp_path / "f", arrays, {KEY: json.dumps(about)})
    return tmp_path / "f"


def test_merging_is_seeing_the_inputs_of_both_if_they_are_as_wide():
    x = inputs(50)
    merged, direct = gram_of(x[:13]) + gram_of(x[13:]), gram_of(x)
    assert merged.count == 50
    np.testing.assert_allclose(merged.matrix, direct.matrix, rtol=1e-12)
    np.testing.assert_allclose(merged.mean, direct.mean, rtol=1e-12)
    with pytest.raises(ValueError, match=r"\(6, 6\) and \(4, 4\)"):
        gram_of(inputs(5)) + gram_of(inputs(5, 4))
    with pytest.raises(TypeError):
        gram_of(inputs(5)) + 1


@pytest.mark.parametrize(
    ("matrix", "count", "mean", "error", "message"),
    [
        (np.eye(3, dtype=np.float32), 1, np.zeros(3), TypeError, "float64, got float32"),
        (np.eye(3), 1, [0.0] * 3, TypeError, "mean must be a numpy array"),
        (np.zeros((3, 4)), 1, np.zeros(3), ValueError, r"\(3, 4\)"),
        (np.eye(3), 1, np.zeros(4), ValueError, r"\(3,\), got \(4,\)"),
        (np.eye(3), 0, np.zeros(3), ValueError, "at least 1"),
    ],
)
def test_what_is_no_gram_is_refused(matrix, count, mean, error, message):
    with pytest.raises(error, match=message):
        Gram(matrix, count, mean)


def test_files_are_exact(tmp_path):
    grams = {"b.weight": gram_of(inputs(7)), "a": grouped(), "a.mean": gram_of(inputs(1, 1))}
    save_grams(tmp_path / "f", grams)
    loaded = load_grams(tmp_path / "f")
    assert list(loaded) == list(grams)
    assert all(same(loaded[name], grams[name]) for name in grams)


def test_the_mean_of_a_matrix_is_taken_once(tmp_path):
    """A mapping that computes its values is not asked again for each array."""

    class Computed(dict):
        taken = 0

        def __getitem__(self, name):
            self.taken += 1
            return super().__getitem__(name)

    grams = Computed(a=gram_of(inputs(4)), b=gram_of(inputs(4)))
    save_grams(tmp_path / "f", grams)
    assert grams.taken == 2


def changed(at, value) -> np.ndarray:
    matrix = gram_of(inputs(8, 3)).matrix.copy()
    matrix[at] = value
    return matrix


PACKED = weights.pack(np.ones((3, 3), np.float32), quantize.Affine(4, 3))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"matrix": changed((0, 1), 99.0)}, "not symmetric"),
        ({"matrix": changed((1, 1), -1e-9)}, "negative diagonal"),
        ({"matrix": changed((2, 0), np.nan)}, "not finite"),
        ({"matrix": changed((2, 2), np.inf)}, "not finite"),
        ({"mean": np.array([0, 0, np.nan])}, "mean is not finite"),
        ({"mean": np.zeros(2)}, r"shape \(3,\), got \(2,\)"),
        ({"matrix": np.zeros((0, 0)), "mean": np.zeros(0)}, "not a Gram matrix"),
        ({"matrix": np.eye(3, dtype=np.float32)}, "float64, got float32"),
        ({"matrix": PACKED}, "not a Gram matrix"),
        ({"counts": {"layer": 0}}, "inputs are 0"),
        ({"counts": {"layer": True}}, "inputs are True"),
        ({"counts": {"layer": 8, "other": 8}}, "'other'.*not there"),
        ({"counts": {}}, "'gram.layer'.*does not mention"),
        ({"counts": []}, "no counts"),
        ({"about": {"version": 2}}, "version 2, but this library reads 1"),
    ],
)
def test_bad_files(tmp_path, wrong, message):
    with pytest.raises(CorruptFileError, match=message) as error:
        load_grams(written(tmp_path, **wrong))
    if "matrix" in wrong or "mean" in wrong:
        assert error.value.name == "layer"


def test_another_file_is_told(tmp_path):
    weights.save(tmp_path / "f", {"x": np.zeros(3)})
    with pytest.raises(CorruptFileError, match="holds no Gram matrices"):
        load_grams(tmp_path / "f")
    (tmp_path / "g").write_bytes(b"not such a file")
    with pytest.raises(CorruptFileError):
        load_grams(tmp_path / "g")


def test_large_matrices_are_checked_past_the_first_rows(tmp_path):
    matrix = np.eye(1100)
    matrix[1090, 3] = 1e-3
    save_grams(tmp_path / "f", {"layer": Gram(matrix, 5, np.zeros(1100))})
    with pytest.raises(CorruptFileError, match=r"'layer'.*not symmetric"):
        load_grams(tmp_path / "f")
