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
from gradwire.errors import CorruptFileError
from gradwire.weights.file import File
from gradwire.weights.header import check_version, parse_json
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
        for name in ("matrix", "mean"):
            dtype = getattr(getattr(self, name), "dtype", None)
            if dtype != np.float64:
                raise TypeError(f"{name} must be a numpy array of float64, got {dtype}")
        shape = self.matrix.shape
        if len(shape) not in (2, 3) or shape[-1] != shape[-2]:
            raise ValueError(f"a Gram matrix has shape (n, n) or (groups, n, n), got {shape}")
        if self.mean.shape != shape[:-1]:
            raise ValueError(f"the mean must have shape {shape[:-1]}, got {self.mean.shape}")
        if self.count < 1:
            raise ValueError(f"count must be at least 1, got {self.count}")

    def __repr__(self) -> str:
        """Shape and count."""
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
        if math.prod(packed.shape) % (self.width * self.groups):
            raise ValueError(
                f"a weight of shape {packed.shape} does not multiply {self.groups} groups of "
                f"{self.width} inputs"
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
        made = []
        crosses = cross.reshape(self.groups, self.width, self.width)
        for (part, matrix), own in zip(self.parts(w), crosses, strict=True):
            damp = _DAMP * np.trace(matrix) / self.width
            if damp == 0:
                made.append(part)
                continue
            damped = matrix + damp * np.eye(self.width)
            change = np.linalg.solve(damped, (own - matrix).T @ part.T.astype(np.float64)).T
            made.append((part + change).astype(np.float32))
        return np.concatenate(made)

    def __add__(self, other: "Gram") -> "Gram":
        """Return the statistics of the inputs of both."""
        if not isinstance(other, Gram):
            return NotImplemented
        if self.matrix.shape != other.matrix.shape:
            raise ValueError(
                f"Gram matrices of shapes {self.matrix.shape} and {other.matrix.shape} belong to "
                "different layers"
            )
        count = self.count + other.count
        mean = self.mean * (self.count / count) + other.mean * (other.count / count)
        return Gram(self.matrix + other.matrix, count, mean)


def flaw(gram: Gram) -> str | None:
    """Return why a matrix is not a Gram matrix, or None; needs memory for some rows."""
    if not np.isfinite(gram.mean).all():
        return "its mean is not finite"
    n = gram.width
    for matrix in gram.matrix.reshape(-1, n, n):
        scale = np.sqrt(np.maximum(matrix.diagonal(), 0))
        if not np.isfinite(scale).all():
            return "its Gram matrix is not finite"
        if matrix.diagonal().min(initial=0) < 0:
            return "its Gram matrix has a negative diagonal"
        for at in range(0, n, _TILE):
            rows = matrix[at : at + _TILE]
            if not np.isfinite(rows).all():
                return "its Gram matrix is not finite"
            apart = np.abs(rows - matrix[:, at : at + _TILE].T)
            if (apart > _ASYMMETRY * scale[at : at + _TILE, None] * scale).any():
                return "its Gram matrix is not symmetric"
    return None


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
    if KEY not in file.metadata:
        raise CorruptFileError("it holds no Gram matrices: give what `Calibration.save` wrote")
    about = parse_json(file.metadata[KEY], f"metadata {KEY!r}")
    check_version(about, "Gram matrices")
    counts = about.get("counts")
    if not isinstance(counts, dict):
        raise CorruptFileError(f"metadata {KEY!r} gives no counts")
    if strange := set(file) - {prefix + name for name in counts for prefix in (_MATRIX, _MEAN)}:
        raise CorruptFileError("the metadata does not mention it", min(strange))
    return counts


def _read(file: File, name: str, count: Any) -> Gram:
    try:
        matrix, mean = file[_MATRIX + name], file[_MEAN + name]
    except KeyError:
        raise CorruptFileError("its matrix or its mean is not there", name) from None
    if type(count) is not int or count < 1:
        raise CorruptFileError(f"its inputs are {count!r:.100}", name)
    if not (isinstance(matrix, np.ndarray) and isinstance(mean, np.ndarray) and matrix.size):
        raise CorruptFileError("it is not a Gram matrix", name)
    try:
        gram = Gram(matrix, count, mean)
    except (TypeError, ValueError) as error:
        raise CorruptFileError(str(error), name) from None
    if (found := flaw(gram)) is not None:
        raise CorruptFileError(found, name)
    return gram
