"""Rows of packed weights, as the bindings decode and multiply them."""

import numpy as np
import pytest
from numpy.typing import NDArray

from gradwire import Codec, _native
from gradwire.memory import NoMemory
from gradwire.quantize import Affine, Float32, Quantizer
from gradwire.sparsify import All

ROWS, COLS = 5, 192


def encode(quantize: Quantizer) -> bytes:
    matrix = np.random.default_rng(0).standard_normal(ROWS * COLS, np.float32)
    return bytes(Codec(sparsify=All(), quantize=quantize, memory=NoMemory()).encode(matrix))


FRAME = encode(Affine(4, 64))


def untouched(*shape: int) -> NDArray[np.float32]:
    return np.full(shape, 7, np.float32)


def test_what_does_not_fit_is_refused_and_out_stays() -> None:
    x, out = np.ones((1, COLS), np.float32), untouched(1, ROWS)
    with pytest.raises(ValueError, match="960 entries, not 5 rows of 191"):
        _native.packed_linear(FRAME, ROWS, COLS - 1, x, out, "float32")
    with pytest.raises(ValueError, match="x has 192 entries and out 4"):
        _native.packed_linear(FRAME, ROWS, COLS, x, out[:, :4].copy(), "int8")
    with pytest.raises(ValueError, match='"float32" or "int8", got "int4"'):
        _native.packed_linear(FRAME, ROWS, COLS, x, out, "int4")
    with pytest.raises(TypeError, match="float32"):
        _native.packed_linear(FRAME, ROWS, COLS, x.astype(float), out, "float32")
    with pytest.raises(ValueError, match="C-contiguous"):
        _native.packed_linear(FRAME, ROWS, COLS, np.repeat(x, 2, 1)[:, ::2], out, "float32")
    with pytest.raises(ValueError, match="no packed weights"):
        _native.packed_linear(encode(Float32()), ROWS, COLS, x, out, "float32")
    with pytest.raises(ValueError, match="rows 4 to 6 are not in a matrix of 5 rows"):
        _native.packed_rows(FRAME, COLS, 4, 2, untouched(2, COLS))
    with pytest.raises(TypeError, match="int64"):
        _native.packed_take(FRAME, COLS, np.array([0], np.int32), untouched(1, COLS))
    np.testing.assert_array_equal(out, 7)


@pytest.mark.parametrize("index", [-1, ROWS, 2**62])
def test_the_number_of_a_row_that_is_not_there_is_an_index_error(index: int) -> None:
    out = untouched(2, COLS)
    with pytest.raises(IndexError, match=f"index {index} is not that of one of 5 rows"):
        _native.packed_take(FRAME, COLS, np.array([0, index]), out)
    np.testing.assert_array_equal(out, 7)


def test_an_output_must_not_share_memory_with_what_is_read() -> None:
    both = np.ones(COLS + ROWS, np.float32)
    with pytest.raises(ValueError, match="out shares memory with x"):
        _native.packed_linear(FRAME, ROWS, COLS, both[:COLS], both[COLS - 1 :][:ROWS], "float32")
    space = np.zeros(8192, np.uint8)
    frame = space[: len(FRAME)]
    frame[:] = np.frombuffer(FRAME, np.uint8)
    with pytest.raises(ValueError, match="out shares memory with frame"):
        _native.packed_rows(frame, COLS, 0, 1, space[: 4 * COLS].view(np.float32))
