"""Packs a tensor, to the nearest codes, or to codes that preserve a layer's outputs."""

import dataclasses
import functools
import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwire import _native
from gradwire._codec import Codec
from gradwire._validate import MAX_NUMEL, require
from gradwire.errors import NonFiniteError
from gradwire.memory import NoMemory
from gradwire.quantize import Affine
from gradwire.sparsify import All
from gradwire.weights.gram import Gram
from gradwire.weights.packed import DTYPES, Packed, row_of
from gradwire.weights.solve import COMQ, Preparation, Solver

LARGEST = 2.0**118  # a magnitude that a grid reaches
LEAST_BLOCK = 16  # entries: a smaller block would take more bits for its grid than for its codes

_EXPONENT, _LEAST_EXPONENT = slice(10, 12), -103


def pack(
    array: NDArray[Any],
    quantize: Affine,
    more: Sequence[int] = (),
    name: str = "",
    *,
    gram: Gram | None = None,
    rounding: Solver | None = None,
    prepare: Preparation | None = None,
) -> Packed:
    """Pack a tensor.

    Blocks do not cross rows (the slices along the first dimension): if `quantize.block` does not
    divide a row, its largest divisor of at least 16 that divides the row is used, a multiple of 8
    if there is one. A tensor of one dimension may end in a short block.

    Parameters
    ----------
    array : numpy.ndarray
        float32, float16, bfloat16, or float64, which is rounded to float32 with a warning; any
        shape and strides, at least one entry.
    quantize : gradwire.quantize.Affine
        Bits, block and fit.
    more : sequence of int
        Further bits: none, or one number, at most 8 with ``quantize.bits``. They need
        ``fit="range"``, and no `gram`.
    name : str
        Of the tensor, for errors.
    gram : Gram, optional
        Gram matrix of the layer's inputs, as wide as a row: codes are chosen to change the layer's
        outputs least.
    rounding : Solver, optional
        Chooses the codes: `COMQ` (the default with a `gram`), `GPTQ`, or one of your own.
    prepare : Preparation, optional
        Changes the weights first: `MagR`, or one of your own.

    Returns
    -------
    Packed

    Raises
    ------
    TypeError
        The dtype is not a float.
    ValueError
        There are no entries or too many, a magnitude is beyond 2**118, no block fits the rows, or
        further bits are not possible. ``rounding`` or ``prepare`` without ``gram``; a ``gram`` of
        another width, or that is not a Gram matrix; with one, a grid that crosses rows or is
        rounded randomly, or a result of ``rounding`` that is not a code of that grid.
    NonFiniteError
        A value is NaN or infinite.
    """
    further = check_more(quantize, more)
    check_solving(gram is not None, rounding, prepare, "gram", more)
    if gram is not None:
        return pack_solved(array, quantize, name, gram, rounding, prepare)[0]
    floats, dtype = _floats(array, name)
    frame = encoded(floats, quantize, name)
    codes = _native.packed_further(frame, floats.reshape(-1), further) if further else None
    packed = Packed(frame, np.shape(array), dtype, codes, further)
    return dataclasses.replace(packed, measured=packed.error(floats))


def pack_solved(
    array: NDArray[Any],
    quantize: Affine,
    name: str,
    gram: Gram,
    rounding: Solver | None = None,
    prepare: Preparation | None = None,
    cross: NDArray[np.float64] | None = None,
) -> tuple[Packed, float]:
    """Pack as `pack`, and return the error of outputs too; for ``cross`` see `Gram.compensated`."""
    (floats, dtype), label = _floats(array, name), _label(name)
    rows = floats.reshape(shape_for(gram, floats.shape, label))
    if (wrong := ~np.isfinite(floats)).any():
        raise NonFiniteError(int(wrong.sum()), int(wrong.argmax()), name or None)
    wanted = rows if cross is None else gram.compensated(rows, cross)
    _check_reach(label, wanted)
    affine = _fit_blocks(label, rows.shape, quantize)
    require(
        affine.block is not None and affine.rounding == "nearest",
        "{}: chosen codes cannot be rounded randomly; give a block, got {!r}",
        *(label, quantize),
    )
    blocks = (len(rows), gram.width // (affine.block or 1))
    solver, solutions = rounding or COMQ(), list[Any]()
    try:
        for part, matrix in gram.parts(wanted):
            if prepare is not None:
                part = _check_result(prepare.prepare(part, matrix, affine), part.shape, prepare)
            solutions.append(solver.solve(part, matrix, affine))
        arrays = map(np.concatenate, zip(*solutions, strict=True))
        shapes = (rows.shape, blocks, blocks)
        grids = [_check_result(a, shape, solver) for a, shape in zip(arrays, shapes, strict=True)]
        frame = memoryview(_native.packed_of_codes(wanted, affine.get_config(), *grids))
    except ValueError as error:
        raise ValueError(f"{label}: {error}") from error
    decoded = np.empty_like(rows)
    measured = _native.packed_error(frame, rows, decoded)
    packed = Packed(frame, np.shape(array), dtype, measured=measured)
    return packed, gram.error(wanted, decoded)


def _floats(array: NDArray[Any], name: str) -> tuple[NDArray[np.float32], str]:
    """Return a tensor as float32, of at least one dimension, and the dtype that it is packed of."""
    label, values = _label(name), np.asarray(array)
    _check_size(label, values.size)  # before it is copied
    dtype = values.dtype.name
    if dtype == "float64":
        warnings.warn(f"{label} is float64, and is rounded to float32", stacklevel=3)
        dtype = "float32"
    if dtype not in DTYPES:
        raise TypeError(f"{label} must be floating-point to be packed, got {dtype}")
    with np.errstate(over="ignore"):  # an infinite value is an error later
        return np.ascontiguousarray(values, np.float32), dtype


def encoded(values: NDArray[np.float32], quantize: Affine, name: str = "") -> memoryview:
    """Return the frame of a tensor, each value rounded separately. Errors are as in `pack`."""
    label = _label(name)
    _check_size(label, values.size)
    codec = _codec(_fit_blocks(label, values.shape, quantize))
    state = codec.init_state(values.size, name=name or None)
    frame = memoryview(codec.encode(values.reshape(-1), state))
    saturates = int.from_bytes(frame[_EXPONENT], "little", signed=True) == _LEAST_EXPONENT
    if saturates:
        _check_reach(label, values)
    return frame


def _check_reach(label: str, values: NDArray[np.float32]) -> None:
    most = float(np.abs(values).max())
    require(most <= LARGEST, "{} has magnitudes beyond 2**118, which no grid reaches", label)


def _fit_blocks(label: str, shape: tuple[int, ...], quantize: Affine) -> Affine:
    """Return a grid whose blocks divide the rows of a tensor."""
    block = fitting_block(shape, quantize.block)
    require(
        quantize.block is None or block is not None,
        "{} has rows of {}, which no block of {} to {} divides; give another block, or leave it as "
        "it is",
        *(label, row_of(shape), LEAST_BLOCK, quantize.block),
    )
    return dataclasses.replace(quantize, block=block)


def _label(name: str) -> str:
    return repr(name) if name else "the tensor"


def _check_size(label: str, size: int) -> None:
    fits = 0 < size <= MAX_NUMEL
    require(fits, "{} must have 1 to {} entries, got {}", label, MAX_NUMEL, size)


@functools.lru_cache(maxsize=64)
def _codec(quantize: Affine) -> Codec:
    return Codec(sparsify=All(), quantize=quantize, memory=NoMemory())


def shape_for(gram: Gram, shape: tuple[int, ...], label: str) -> tuple[int, int]:
    """Return a tensor's shape as rows that are multiplied by inputs, or raise a ValueError."""
    rows = math.prod(shape) // max(1, gram.width)
    widths = (row_of(shape), shape[-1] if shape else 1)
    require(
        gram.width in widths and rows % gram.groups == 0,
        "{} has shape {}, but its Gram matrix has {} groups of {} inputs: it belongs to another "
        "layer",
        *(label, shape, gram.groups, gram.width),
    )
    return rows, gram.width


def _check_result(array: Any, shape: tuple[int, ...], of: object) -> NDArray[Any]:
    """Return a solver's result, contiguous: codes as uint8, others as float32."""
    result, solver = np.asarray(array), type(of).__name__
    fits = result.shape == shape
    require(fits, "{} gave an array of shape {}, not {}", solver, result.shape, shape)
    to = np.uint8 if np.issubdtype(result.dtype, np.integer) else np.float32
    with np.errstate(over="ignore", invalid="ignore"):
        converted = np.ascontiguousarray(result, to)
    usable = np.isfinite(converted).all() and (to is np.float32 or (converted == result).all())
    require(usable, "{} gave numbers that are not finite, or no codes", solver)
    return converted


def check_more(quantize: Affine, more: Sequence[int]) -> int:
    few = not isinstance(more, int) and len(more) <= 1
    require(few, "more must be a sequence of at most one number of bits, got {!r}", more)
    if not more:
        return 0
    (bits,) = more
    require(
        type(bits) is int and bits >= 1 and quantize.bits + bits <= 8,
        "{} bits and {!r} further ones must add up to 2 to 8",
        *(quantize.bits, bits),
    )
    require(
        quantize.fit == "range" and quantize.rounding == "nearest",
        'further bits lie within the cells of a whole range: they need fit="range" and '
        'rounding="nearest", got {!r}',
        quantize,
    )
    return bits


def check_solving(
    calibrated: bool,
    rounding: Solver | None,
    prepare: Preparation | None,
    what: str,
    more: Sequence[int],
) -> None:
    """Raise unless codes can be chosen by a solver: ``what`` is the argument that needs it."""
    solves = rounding is not None or prepare is not None
    name = "prepare" if rounding is None else "rounding"
    require(calibrated or not solves, "{} needs to know the layer's inputs: pass {}=", name, what)
    require(
        not calibrated or not more,
        "codes chosen for a few bits can lie in a different cell from the weight's, where further "
        "bits would be wrong: leave out more= or {}=",
        what,
    )


def fitting_block(shape: tuple[int, ...], block: int | None) -> int | None:
    """Return the largest block up to one that divides a row, or None."""
    if block is None:
        return None
    row = row_of(shape)
    if len(shape) < 2 or row % block == 0 or row <= block:
        return min(block, row)
    divisors = [n for n in range(LEAST_BLOCK, block + 1) if row % n == 0]
    whole = [n for n in divisors if n % 8 == 0]
    return max(whole or divisors, default=None)
