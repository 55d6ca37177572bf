"""`gradwire.weights.flip`."""

import sys

import numpy as np
import pytest

import gradwire
from gradwire import weights
from gradwire.errors import CorruptFrameError
from gradwire.memory import NoMemory
from gradwire.quantize import Affine
from tests.weights.plain_reader import frame as plain_frame


@pytest.fixture(scope="module")
def matrix():
    return np.random.default_rng(3).normal(size=(250, 400)).astype(np.float32)


def codes(packed):
    return plain_frame(bytes(packed.joined()), int(np.prod(packed.shape)))[3]


def flipped_bits(packed, *arguments):
    """Which bits of codes have changed, as a mask for each weight."""
    return codes(packed) ^ codes(weights.flip(packed, *arguments))


@pytest.mark.parametrize("bits", range(1, 9))
@pytest.mark.parametrize("fit", ["squares", "sawb"])
def test_a_bit_is_flipped_if_its_own_number_is_not_above_the_rate(matrix, bits, fit):
    packed = weights.pack(matrix[:7, :50], Affine(bits, 50, fit=fit))
    drawn = np.random.PCG64(9).random_raw(350 * bits).reshape(350, bits)
    u = ((drawn >> 11) + 1) / 2.0**53
    for rate in (0.0, 0.05, 0.5, 1.0):
        expected = ((u <= rate).astype(np.int64) << np.arange(bits)).sum(1)
        np.testing.assert_array_equal(flipped_bits(packed, rate, 9), expected)


@pytest.mark.parametrize("shape", [(1, 1), (7,), (3, 5), (250, 400)])
@pytest.mark.parametrize("bits", [1, 3, 8])
def test_all_or_none_are_flipped_at_the_ends(shape, bits):
    values = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    packed = weights.pack(values, Affine(bits, 64))
    assert bytes(weights.flip(packed, 0).frame) == bytes(packed.frame)
    assert (flipped_bits(packed, 1) == 2**bits - 1).all()


def mean_square_of_changes(packed, rate):
    changes = np.array([codes(weights.flip(packed, rate, seed)) for seed in range(10)])
    return ((changes - codes(packed)) ** 2).mean()


@pytest.mark.parametrize(("bits", "rate"), [(2, 0.05), (4, 0.05), (8, 0.01)])
def test_the_mean_square_of_changes_is_that_of_the_paper_for_even_codes(bits, rate):
    values = np.random.default_rng(3).random((250, 400), np.float32)
    packed = weights.pack(values, Affine(bits, None, fit="range"))
    expected = rate * (4**bits - 1) / 3
    assert mean_square_of_changes(packed, rate) == pytest.approx(expected, rel=0.02)
    moved = np.linalg.norm(weights.flip(packed, rate).unpack() - packed.unpack())
    share = moved / np.sqrt(values.size)  # of a range of 1
    assert share == pytest.approx(np.sqrt(rate / 3), rel=0.03 + 2.0 / 2**bits)


@pytest.mark.parametrize(("bits", "rate"), [(1, 0.3), (2, 0.2), (4, 0.05), (8, 0.5)])
def test_the_mean_square_of_changes_of_any_codes(matrix, bits, rate):
    packed = weights.pack(matrix, Affine(bits, None, fit="range"))
    inner = ((2**bits - 1 - 2 * codes(packed)) ** 2).mean()
    expected = rate * (1 - rate) * (4**bits - 1) / 3 + rate**2 * inner
    assert mean_square_of_changes(packed, rate) == pytest.approx(expected, rel=0.02)


def test_errors_at_a_smaller_rate_are_among_those_at_a_larger_one(matrix):
    packed = weights.pack(matrix, Affine(4, 40))
    before = np.zeros(packed.shape, np.int64).reshape(-1)
    for rate in (1e-4, 1e-3, 0.01, 0.3, 1):
        now = flipped_bits(packed, rate, 5)
        assert not (before & ~now).any()
        assert (now & ~before).any()
        before = now


def test_seeds_are_patterns(matrix):
    packed = weights.pack(matrix, Affine(4, 40))
    first, again, other = (flipped_bits(packed, 0.1, seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    np.testing.assert_array_equal(first, flipped_bits(packed, 0.1))
    both = np.unpackbits((first & other).astype(np.uint8)).sum() / (4 * matrix.size)
    assert both == pytest.approx(0.01, rel=0.05)


def test_planes_that_are_named_are_hit_as_if_all_were(matrix):
    packed = weights.pack(matrix, Affine(5, 40))
    every = flipped_bits(packed, 0.2, 1)
    for planes in ((4,), [0, 3], {1}, range(5), np.array([2, 2])):
        mask = sum(1 << plane for plane in {*map(int, planes)})
        np.testing.assert_array_equal(flipped_bits(packed, 0.2, 1, planes), every & mask)


@pytest.mark.parametrize("chunk", [8, 24, 1000, 1 << 20])
def test_the_pattern_does_not_depend_on_chunks(matrix, chunk, monkeypatch):
    packed = weights.pack(matrix, Affine(3, 40))
    expected = bytes(weights.flip(packed, 0.1).frame)
    monkeypatch.setattr(sys.modules["gradwire.weights.flip"], "_CHUNK", chunk)
    assert bytes(weights.flip(packed, 0.1).frame) == expected


def test_a_pattern_is_what_it_was():
    packed = weights.pack(np.linspace(-1, 1, 16, dtype=np.float32), Affine(4, 16, fit="range"))
    assert codes(packed).tolist() == list(range(16))
    assert codes(weights.flip(packed, 0.2, 7)).tolist() == [
        *(0, 5, 2, 3, 4, 15, 7, 7),
        *(11, 3, 10, 15, 12, 4, 14, 7),
    ]


@pytest.mark.parametrize("fit", ["squares", "range", "zero", "sawb"])
@pytest.mark.parametrize("scale", [1e-37, 1e-30, 1.0, 1e34])
def test_all_but_codes_and_checksum_is_left(matrix, fit, scale):
    packed = weights.pack(matrix * np.float32(scale), Affine(6, 40, fit=fit))
    before = bytes(packed.frame)
    flipped = weights.flip(packed, 0.3)
    after = bytes(flipped.frame)
    grids = slice(16, 56 + 4 * 2500)
    assert (after[:12], after[grids]) == (before[:12], before[grids])
    assert len(after) == len(before)
    assert bytes(packed.frame) == before
    gradwire.Frame(after)  # its checksum is right
    assert (flipped.shape, flipped.dtype, flipped.block) == (packed.shape, "float32", 40)
    assert flipped.error() is None
    assert bytes(weights.flip(flipped, 0.3).frame) == before


def test_grids_of_subnormal_weights_are_read_as_they_were(matrix):
    packed = weights.pack(matrix * np.float32(1e-42), Affine(6, 40))
    np.testing.assert_array_equal(weights.flip(packed, 0).unpack(), packed.unpack())


def test_further_bits_are_flipped_like_the_first_ones(matrix):
    nested = weights.pack(matrix, Affine(4, 40, fit="range"), more=(3,))
    flipped = weights.flip(nested, 0.1, 2)
    assert (flipped.bits, flipped.more, flipped.further) == (7, 0, None)
    whole = weights.Packed(nested.joined(), nested.shape)
    assert bytes(flipped.frame) == bytes(weights.flip(whole, 0.1, 2).frame)
    low = weights.flip(nested, 1, planes=(0, 1, 2))
    np.testing.assert_array_equal(codes(nested) ^ codes(low), np.full(matrix.size, 7))
    first = weights.pack(matrix, Affine(4, 40, fit="range"))
    kept = weights.flip(nested.keep(4), 0.1)
    assert bytes(kept.frame) == bytes(weights.flip(first, 0.1).frame)


def test_a_tensor_in_a_file_is_left_as_it_is(matrix, tmp_path):
    weights.save(tmp_path / "w.safetensors", {"w": weights.pack(matrix, Affine(4, 40))})
    before = (tmp_path / "w.safetensors").read_bytes()
    with weights.open(tmp_path / "w.safetensors") as file:
        flipped = weights.flip(file["w"], 0.1)
        assert 0.1 < flipped.error(file["w"].unpack()) < 2
        weights.save(tmp_path / "flipped.safetensors", {"w": flipped})
    assert (tmp_path / "w.safetensors").read_bytes() == before
    with weights.open(tmp_path / "flipped.safetensors") as file:
        np.testing.assert_array_equal(file["w"].unpack(), flipped.unpack())


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"rate": -1e-9}, ValueError, "rate must be 0 to 1, got -1e-09"),
        ({"rate": 1.5}, ValueError, "rate must be 0 to 1, got 1.5"),
        ({"rate": np.nan}, ValueError, "rate must be 0 to 1, got nan"),
        ({"rate": np.inf}, ValueError, "rate must be 0 to 1, got inf"),
        ({"rate": True}, TypeError, "rate must be a real number, got True"),
        ({"rate": "0.1"}, TypeError, "rate must be a real number, got '0.1'"),
        ({"seed": -1}, ValueError, "seed must be at least 0, got -1"),
        ({"seed": 1.0}, TypeError, r"seed must be an integer, got 1\.0"),
        ({"seed": None}, TypeError, "seed must be an integer, got None"),
        ({"planes": ()}, ValueError, "planes must name at least one bit of a code, got none"),
        ({"planes": (0, 4)}, ValueError, r"planes\[1\] must be at most 3, got 4"),
        ({"planes": (-1,)}, ValueError, r"planes\[0\] must be at least 0, got -1"),
        ({"planes": (True,)}, TypeError, r"planes\[0\] must be an integer, got True \(bool\)"),
        ({"planes": (1.0,)}, TypeError, r"planes\[0\] must be an integer, got 1\.0"),
        ({"planes": "01"}, TypeError, r"planes\[0\] must be an integer, got '0'"),
        (
            {"planes": 3},
            TypeError,
            r"planes must be a sequence of code bits, such as \(7,\), got 3",
        ),
        ({"planes": True}, TypeError, "planes must be a sequence"),
    ],
)
def test_wrong_arguments_are_refused(matrix, arguments, error, message):
    packed = weights.pack(matrix, Affine(4, 40))
    with pytest.raises(error, match=message):
        weights.flip(packed, **{"rate": 0.1, **arguments})


@pytest.mark.parametrize("what", [np.zeros((4, 4), np.float32), b"GWF", None, {}])
def test_what_is_not_packed_has_no_codes(what):
    name = type(what).__name__
    with pytest.raises(TypeError, match=rf"must be a gradwire\.weights\.Packed, .* got {name}"):
        weights.flip(what, 0.1)


def test_a_sparse_frame_has_no_code_for_each_entry(matrix):
    frame = gradwire.topk(0.1, memory=NoMemory(), quantize=Affine(4, 40)).encode(matrix.reshape(-1))
    with pytest.raises(ValueError, match="it holds no packed tensor"):
        weights.flip(weights.Packed(frame, matrix.shape), 0.1)


@pytest.mark.parametrize("part", ["frame", "further"])
def test_bytes_that_are_corrupt_get_no_new_checksum(matrix, part):
    packed = weights.pack(matrix, Affine(4, 40, fit="range"), more=(2,))
    parts = {"frame": bytearray(packed.frame), "further": bytearray(packed.further)}
    parts[part][-5] ^= 1
    with pytest.raises(CorruptFrameError, match="checksum"):
        weights.flip(weights.Packed(**parts, shape=packed.shape, more=2), 0.1)
