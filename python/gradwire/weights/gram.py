"""Statistics of a layer's inputs, which determine the errors of its outputs."""

import dataclasses
import functools
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwire import _native
from gradwire._validate import require
from gradwire.errors import CorruptFileError
from gradwire.weights.file import File
from gradwire.weights.header import check_version, parse_json, require_valid
from gradwire.weights.packed import Packed
from gradwire.weights.saving import Content, bytes_of, write

Rows = NDArray[np.float32]

KEY = "gradwire.grams"
VERSION = 1

_MATRIX, _MEAN = "gram.", "mean."
_ASYMMETRY = 1e-6
_DAMP = 0.01
_TILE = 512  # rows that are looked at together


@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class Gram:
    """The Gram matrix of a layer's inputs, their number, and their mean.

    Replacing rows ``w`` of a weight by ``q`` changes the squared outputs by ``(q - w) G (q - w)^T``
    in sum over the inputs, of which ``G = X^T X`` is the Gram matrix.

    Parameters
    ----------
    matrix : numpy.ndarray
        float64, (n, n); or (groups, n, n), if the rows of the weight form that many equal groups
        with separate inputs: grouped convolutions, or queries, keys and values.
    count : int
        Number of inputs, at least one. Groups with fewer are padded with zeros.
    mean : numpy.ndarray
        float64, (n,) or (groups, n): the sum of the inputs over `count`.

    Raises
    ------
    TypeError
        An array is not float64.
    ValueError
        The shapes are incompatible; ``count`` is below one. Entries are not checked.
    """

    matrix: NDArray[np.float64]
    count: int
    mean: NDArray[np.float64]

    def __post_init__(self) -> None:
        for name, array in (("matrix", self.matrix), ("mean", self.mean)):
            dtype, message = (
                getattr(array, "dtype", None),
                "{} must be a numpy array of float64, got {}",
            )
            require(dtype == np.float64, message, name, dtype, kind=TypeError)
        shape, mean = self.matrix.shape, self.mean.shape
        square = len(shape) in (2, 3) and shape[-1] == shape[-2]
        require(square, "a Gram matrix has shape (n, n) or (groups, n, n), got {}", shape)
        require(mean == shape[:-1], "the mean must have shape {}, got {}", shape[:-1], mean)
        require(self.count >= 1, "count must be at least 1, got {}", self.count)

    def __repr__(self) -> str:
        return f"Gram({self.matrix.shape}, of {self.count} inputs)"

    @property
    def groups(self) -> int:
        """Number of matrices."""
        return len(self.matrix) if self.matrix.ndim == 3 else 1

    @property
    def width(self) -> int:
        """Entries of an input."""
        return int(self.matrix.shape[-1])

    def parts(self, rows: Rows) -> Iterator[tuple[Rows, NDArray[np.float64]]]:
        """Yield the rows of each group, and the group's matrix."""
        count = len(rows) // self.groups
        for i, matrix in enumerate(self.matrix.reshape(-1, self.width, self.width)):
            yield rows[i * count : (i + 1) * count], matrix

    def error(self, array: NDArray[Any], packed: Packed | Rows) -> float:
        """Return the error of a layer's outputs for these inputs if its weight is packed.

        Parameters
        ----------
        array : numpy.ndarray
            The original weight; another length of its rows is a ValueError.
        packed : Packed or numpy.ndarray
            The packed weight, or its decoded values as float32.

        Returns
        -------
        float
            Root mean square of the change of outputs (without a bias), as a share of theirs.
        """
        require(
            math.prod(packed.shape) % (self.width * self.groups) == 0,
            "a weight of shape {} does not multiply {} groups of {} inputs",
            *(packed.shape, self.groups, self.width),
        )
        rows = np.ascontiguousarray(array, np.float32).reshape(-1, self.width)
        decoded = (packed.unpack() if isinstance(packed, Packed) else packed).reshape(rows.shape)
        lost = norm = 0.0
        for (exact, matrix), (made, _) in zip(self.parts(rows), self.parts(decoded), strict=True):
            sums = _native.gram_errors(exact, made, matrix)
            lost, norm = lost + sums[0], norm + sums[1]
        return 0.0 if lost == 0.0 else math.sqrt(lost / norm) if norm else math.inf

    def compensated(self, w: Rows, cross: NDArray[np.float64]) -> Rows:
        """Return weights whose outputs for these inputs are nearest to those of ``w`` for others.

        Once earlier layers are packed, a layer gets other inputs than its weights were trained for.
        Least squares over ``|X w^T - Y v^T|^2`` for inputs X before and Y now, with 0.01 of the
        mean of the diagonal of ``Y^T Y`` for each squared change of a weight; ``cross`` is
        ``X^T Y``, of the shape of ``matrix``.

        References
        ----------
        Li, Yin, Lee, Xiao, Panda, "GPTAQ: Efficient Finetuning-Free Quantization for Asymmetric
        Calibration", ICML 2025, section 4, where it is part of GPTQ; here any solver follows.
        """
        parts = []
        crosses = cross.reshape(self.groups, self.width, self.width)
        for (part, matrix), other in zip(self.parts(w), crosses, strict=True):
            if damp := _DAMP * np.trace(matrix) / self.width:
                damped = matrix + damp * np.eye(self.width)
                change = np.linalg.solve(damped, (other - matrix).T @ part.T.astype(np.float64)).T
                part = (part + change).astype(np.float32)
            parts.append(part)
        return np.concatenate(parts)

    def __add__(self, other: "Gram") -> "Gram":
        """Return the statistics of the inputs of both."""
        if not isinstance(other, Gram):
            return NotImplemented
        shapes = self.matrix.shape, other.matrix.shape
        alike = shapes[0] == shapes[1]
        require(alike, "Gram matrices of shapes {} and {} belong to different layers", *shapes)
        count = self.count + other.count
        mean = self.mean * (self.count / count) + other.mean * (other.count / count)
        return Gram(self.matrix + other.matrix, count, mean)


def _check(gram: Gram, name: str) -> None:
    """Raise a CorruptFileError unless it is a Gram matrix; needs memory for some rows."""
    require_valid(np.isfinite(gram.mean).all(), "its mean is not finite", name=name)
    n = gram.width
    for matrix in gram.matrix.reshape(-1, n, n):
        diagonal = matrix.diagonal()
        require_valid(np.isfinite(diagonal).all(), "its Gram matrix is not finite", name=name)
        positive = diagonal.min(initial=0) >= 0
        require_valid(positive, "its Gram matrix has a negative diagonal", name=name)
        scale = np.sqrt(diagonal)
        for at in range(0, n, _TILE):
            rows = matrix[at : at + _TILE]
            require_valid(np.isfinite(rows).all(), "its Gram matrix is not finite", name=name)
            apart = np.abs(rows - matrix[:, at : at + _TILE].T)
            alike = (apart <= _ASYMMETRY * scale[at : at + _TILE, None] * scale).all()
            require_valid(alike, "its Gram matrix is not symmetric", name=name)


def save_grams(path: str | os.PathLike[str], grams: Mapping[str, Gram]) -> None:
    """Write Gram matrices to a safetensors file, exactly.

    Parameters
    ----------
    path : path-like
        A temporary file in the same folder is written first, then renamed.
    grams : mapping of str to Gram
        By names of weights. They are taken from the mapping one at a time, twice.

    Raises
    ------
    OSError
        The file cannot be written; an existing file is unchanged.
    """
    contents, counts = dict[str, Content](), dict[str, int]()
    # A mean follows its matrix, so each is computed once more.
    read = functools.lru_cache(maxsize=1)(grams.__getitem__)
    for name, gram in grams.items():
        counts[name] = gram.count
        for prefix, part in ((_MATRIX, "matrix"), (_MEAN, "mean")):
            array = getattr(gram, part)
            data = partial(_bytes_of, read, name, part)
            contents[prefix + name] = Content("F64", array.shape, array.nbytes, data)
    write(path, contents, {KEY: json.dumps({"version": VERSION, "counts": counts})})


def _bytes_of(read: Callable[[str], Gram], name: str, part: str) -> NDArray[np.uint8]:
    return bytes_of(getattr(read(name), part))


def load_grams(path: str | os.PathLike[str]) -> dict[str, Gram]:
    """Return the Gram matrices of a file, by names of weights.

    They use the memory of the file, whose pages are read on demand. All are read once here for
    checks.

    Parameters
    ----------
    path : path-like
        From `save_grams` or ``gradwire.torch.weights.Calibration.save``.

    Returns
    -------
    dict of str to Gram

    Raises
    ------
    CorruptFileError
        The file is of another kind or invalid; or a matrix is not symmetric, not finite, has a
        negative diagonal, or no inputs; the message names the weight.
    OSError
        The file cannot be read.
    """
    with File(path) as file:
        counts = _read_counts(file)
        return {name: _read(file, name, count) for name, count in counts.items()}


def _read_counts(file: File) -> dict[str, Any]:
    there = KEY in file.metadata
    require_valid(there, "it holds no Gram matrices: give what `Calibration.save` wrote")
    about = parse_json(file.metadata[KEY], f"metadata {KEY!r}")
    check_version(about, "Gram matrices")
    counts: Any = about.get("counts")
    require_valid(isinstance(counts, dict), "metadata {!r} gives no counts", KEY)
    expected = {prefix + name for name in counts for prefix in (_MATRIX, _MEAN)}
    unknown = min(set(file) - expected, default=None)
    require_valid(unknown is None, "the metadata does not mention it", name=unknown)
    return dict(counts)


def _read(file: File, name: str, count: Any) -> Gram:
    there = _MATRIX + name in file and _MEAN + name in file
    require_valid(there, "its matrix or its mean is not there", name=name)
    require_valid(type(count) is int and count >= 1, "its inputs are {!r:.100}", count, name=name)
    matrix, mean = file[_MATRIX + name], file[_MEAN + name]
    if not (isinstance(matrix, np.ndarray) and isinstance(mean, np.ndarray) and matrix.size):
        raise CorruptFileError("it is not a Gram matrix", name)
    try:
        gram = Gram(matrix, count, mean)
    except (TypeError, ValueError) as error:
        raise CorruptFileError(str(error), name) from None
    _check(gram, name)
    return gram
