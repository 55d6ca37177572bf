"""`gradwire.weights.pack` and `Packed`."""

import copy
import pickle

import ml_dtypes
import numpy as np
import pytest

import gradwire
from gradwire import weights
from gradwire.errors import CorruptFrameError, NonFiniteError
from gradwire.quantize import Affine


@pytest.fixture(scope="module")
def matrix():
    return np.random.default_rng(1).normal(size=(48, 192)).astype(np.float32)


@pytest.mark.parametrize("bits", range(1, 9))
@pytest.mark.parametrize("fit", ["squares", "range", "sawb"])
def test_a_tensor_comes_back_as_its_frame_decodes(matrix, bits, fit):
    packed = weights.pack(matrix, Affine(bits, 64, fit=fit))
    unpacked = packed.unpack()
    assert (unpacked.shape, unpacked.dtype) == (matrix.shape, np.float32)
    np.testing.assert_array_equal(unpacked.reshape(-1), gradwire.decode(packed.frame))
    assert (packed.bits, packed.block, packed.dtype) == (bits, 64, "float32")
    assert packed.nbytes == len(packed.frame) == 56 + 48 * 192 // 64 * 4 + 48 * 192 * bits // 8
    assert packed.bits_per_weight == 8 * packed.nbytes / matrix.size


def test_the_error_is_the_root_of_the_mean_square_of_what_is_lost_relative_to_the_values(matrix):
    packed = weights.pack(matrix, Affine(4, 64))
    exact = matrix.astype(np.float64)
    lost = np.linalg.norm(packed.unpack() - exact) / np.linalg.norm(exact)
    assert packed.error() == pytest.approx(lost, rel=1e-5)
    assert packed.error(matrix) == pytest.approx(lost, rel=1e-5)
    assert packed.error(packed.unpack()) == 0.0
    with pytest.raises(ValueError, match=f"not the {matrix.size} that were packed"):
        packed.error(matrix[1:])
    assert 0.07 < lost < 0.1


@pytest.mark.parametrize("size", [9215, 9217])
def test_unpack_refuses_an_array_of_another_size_and_leaves_it_alone(matrix, size):
    out = np.full(size, 7, np.float32)
    with pytest.raises(ValueError, match="9216"):
        weights.pack(matrix, Affine(4, 64)).unpack(out=out)
    assert (out == 7).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_packed_as_the_float32_that_it_is(matrix, dtype):
    half = matrix.astype(getattr(ml_dtypes, dtype, dtype))
    packed = weights.pack(half, Affine(4, 64))
    assert packed.dtype == dtype
    np.testing.assert_array_equal(
        packed.unpack(), weights.pack(half.astype(np.float32), Affine(4, 64)).unpack()
    )


def test_float64_is_rounded_and_says_so(matrix):
    with pytest.warns(UserWarning, match="'w' is float64, and is rounded to float32"):
        packed = weights.pack(matrix.astype(np.float64), Affine(4, 64), name="w")
    assert packed.dtype == "float32"
    assert bytes(packed.frame) == bytes(weights.pack(matrix, Affine(4, 64)).frame)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_an_error_that_names_the_tensor(matrix, value):
    bad = matrix.copy()
    bad[3, 5] = value
    with pytest.raises(NonFiniteError, match=r"tensor 'layer\.w' has 1 non-finite") as caught:
        weights.pack(bad, Affine(4, 64), name="layer.w")
    assert (caught.value.first, caught.value.name) == (3 * 192 + 5, "layer.w")


@pytest.mark.parametrize("dtype", ["int8", "int64", "bool", "complex64", "U1", "O"])
def test_only_floats_are_packed(dtype):
    with pytest.raises(TypeError, match=r"'w' must be floating-point"):
        weights.pack(np.ones((4, 64)).astype(dtype), Affine(4, 64), name="w")


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 64)])
def test_a_tensor_without_entries_is_refused(shape):
    with pytest.raises(ValueError, match="'w' must have 1 to 4294967295 entries, got 0"):
        weights.pack(np.zeros(shape, np.float32), Affine(4, 64), name="w")


def test_a_tensor_of_2_to_the_32_entries_is_refused_before_it_is_read():
    huge = np.broadcast_to(np.float32(1), (2**16, 2**16))
    with pytest.raises(ValueError, match="got 4294967296"):
        weights.pack(huge, Affine(4, 64))


@pytest.mark.parametrize(
    ("shape", "asked", "block"),
    [
        ((4, 192), 64, 64),
        ((4, 192), 128, 96),
        ((4, 100), 64, 50),  # no divisor is a multiple of 8
        ((4, 240), 64, 48),  # 60 is larger, but its rows do not begin on bytes at every width
        ((4, 20), 64, 20),
        ((4, 3, 3, 8), 64, 24),
        ((4, 5), 64, 5),
        ((1000,), 64, 64),  # one row, whose last block is shorter
        ((4, 192), None, 768),
    ],
)
def test_blocks_end_with_rows(shape, asked, block):
    assert weights.pack(np.ones(shape, np.float32), Affine(4, asked)).block == block


@pytest.mark.parametrize(("bits", "more"), [(4, 4), (1, 7), (7, 1), (3, 2), (2, 6)])
def test_first_bits_are_those_of_a_tensor_without_further_ones_and_all_are_about_as_good(
    matrix, bits, more
):
    alone = weights.pack(matrix, Affine(bits, 64, fit="range"))
    nested = weights.pack(matrix, Affine(bits, 64, fit="range"), more=(more,))
    assert bytes(nested.frame) == bytes(alone.frame)
    assert (nested.bits, nested.first_bits) == (bits + more, bits)
    np.testing.assert_array_equal(nested.unpack(bits=bits), alone.unpack())
    assert nested.keep(bits).nbytes == alone.nbytes
    assert nested.nbytes == alone.nbytes + 4 + matrix.size * more // 8
    whole = weights.pack(matrix, Affine(bits + more, 64, fit="range"))
    assert nested.error() == pytest.approx(nested.error(matrix))
    assert 0.999 * whole.error() <= nested.error() < 1.1 * whole.error()
    joined = nested.joined()
    np.testing.assert_array_equal(gradwire.decode(joined), nested.unpack().reshape(-1))
    assert len(joined) == len(whole.frame)


@pytest.mark.parametrize(
    ("quantize", "more"),
    [
        (Affine(4, 64), (4,)),
        (Affine(4, 64, fit="zero"), (4,)),
        (Affine(4, 64, fit="sawb"), (4,)),
        (Affine(4, 64, fit="range", rounding="stochastic"), (4,)),
        (Affine(4, 64, fit="range"), (5,)),
        (Affine(8, 64, fit="range"), (1,)),
        (Affine(4, 64, fit="range"), (0,)),
        (Affine(4, 64, fit="range"), (True,)),
        (Affine(4, 64, fit="range"), (2.0,)),
        (Affine(4, 64, fit="range"), (2, 2)),
        (Affine(4, 64, fit="range"), 4),
    ],
)
def test_further_bits_that_are_not_possible_are_refused(matrix, quantize, more):
    with pytest.raises(ValueError, match=r"further|more must be"):
        weights.pack(matrix, quantize, more=more)


@pytest.mark.parametrize("bits", [1, 3, 5, 8, 4.5, "4"])
def test_bits_that_are_not_held_are_refused(matrix, bits):
    packed = weights.pack(matrix, Affine(4, 64))
    with pytest.raises(ValueError, match="bits must be 4, which the tensor holds"):
        packed.unpack(bits=bits)
    nested = weights.pack(matrix, Affine(4, 64, fit="range"), more=(3,))
    with pytest.raises(ValueError, match="bits must be 4 and 7, which"):
        nested.keep(bits)


@pytest.mark.parametrize("shape", [(9217,), (48, 191), (48, 192, 2), (), (2**20, 2**20)])
def test_a_shape_of_another_product_is_refused(matrix, shape):
    with pytest.raises(CorruptFrameError, match="9216 entries do not fit shape"):
        weights.Packed(weights.pack(matrix, Affine(4, 64)).frame, shape)


def test_copies_and_pickles_are_the_same_tensor(matrix):
    packed = weights.pack(matrix, Affine(4, 64, fit="range"), more=(4,))
    assert copy.deepcopy(packed) is packed
    loaded = pickle.loads(pickle.dumps(packed))
    np.testing.assert_array_equal(loaded.unpack(), packed.unpack())
    assert (loaded.bits, loaded.shape, loaded.error()) == (8, packed.shape, packed.error())


@pytest.mark.parametrize("value", [4e35, -3e38])
def test_magnitudes_that_no_grid_reaches_are_refused_by_name(value: float) -> None:
    values = np.full((4, 64), value, np.float32)
    with pytest.raises(ValueError, match=r"'w' has magnitudes beyond 2\*\*118"):
        weights.pack(values, Affine(4, 64), name="w")
    fits = weights.pack(np.full((4, 64), 3e35, np.float32), Affine(4, 64))
    assert (fits.error() or 0.0) < 1e-3
