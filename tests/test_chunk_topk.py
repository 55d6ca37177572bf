"""Chunk-top-k: the largest of each chunk or tile, against numpy."""

import numpy as np
import pytest

import gradwire
from gradwire.memory import NoMemory, Residual
from gradwire.quantize import BFloat16
from gradwire.sparsify import ChunkTopK
from tests.support import largest

SHAPES = [(64, 64), (130, 101), (1, 500), (97, 1), (257, 129)]


def codec(*args, **options) -> gradwire.Codec:
    return gradwire.Codec(sparsify=ChunkTopK(*args, **options), memory=NoMemory())


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


@pytest.mark.parametrize(("chunk", "k"), [(1, 1), (100, 1), (100, 3), (4096, 64), (9999, 2)])
@pytest.mark.parametrize("n", [0, 1, 99, 100, 12_345])
def test_chunks_send_their_largest(n, chunk, k):
    x = normal(n)
    expected = [at + largest(x[at : at + chunk], k) for at in range(0, n, chunk)]
    frame = codec(chunk, k).encode(x)
    assert frame.indices().tolist() == [int(i) for part in expected for i in part]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("tile", "k"), [((64, 64), 64), ((8, 3), 1), ((1, 1000), 7)])
def test_tiles_send_their_largest(shape, tile, k):
    x = normal(*shape)
    resolved = codec(4096, k, tile=tile).for_shape(shape)
    places = np.arange(x.size).reshape(shape)
    found = []
    for top in range(0, shape[0], tile[0]):
        for left in range(0, shape[1], tile[1]):
            part = (slice(top, top + tile[0]), slice(left, left + tile[1]))
            found += places[part].ravel()[largest(x[part].ravel(), k)].tolist()
    assert resolved.encode(x).indices().tolist() == sorted(found)


def test_the_shape_decides_where_there_are_tiles():
    part = ChunkTopK(4096, 64, tile=(64, 64))
    assert part.for_shape((100, 37)) == ChunkTopK(4096, 64, tile=(64, 64), columns=37)
    for shape in [(), (5000,), (8, 3, 3, 3), (0, 7)]:
        assert part.for_shape(shape) == ChunkTopK(4096, 64)
    assert ChunkTopK(100).for_shape((10, 10)) == ChunkTopK(100)
    resolved = part.for_shape((2, 2))
    assert resolved.for_shape((9, 9)) is resolved


def test_a_codec_for_a_shape_is_another_only_where_that_matters():
    tiled = codec(4096, 64, tile=(64, 64))
    assert tiled.for_shape((10, 20)).sparsify.columns == 20
    plain = gradwire.topk(0.1)
    assert plain.for_shape((10, 20)) is plain


def test_a_flat_tensor_is_cut_into_chunks_and_others_need_their_shape():
    x = normal(100, 100)
    tiled = codec(50, 2, tile=(8, 8))
    assert tiled.encode(x.ravel()) == codec(50, 2).encode(x)
    with pytest.raises(ValueError, match="for_shape"):
        tiled.encode(x)


def test_a_tensor_of_another_width_is_refused():
    with pytest.raises(ValueError, match="no rows of 7"):
        codec(4, tile=(2, 2), columns=7).encode(np.ones(20, np.float32))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"chunk": 0}, ValueError, "chunk must be at least 1"),
        ({"chunk": 2**31 + 1}, ValueError, "chunk must be at most 2147483648"),
        ({"chunk": 1.5}, TypeError, "chunk must be an integer"),
        ({"chunk": 10, "k": 0}, ValueError, "k must be at least 1"),
        ({"chunk": 10, "tile": 8}, TypeError, "tile must be a pair"),
        ({"chunk": 10, "tile": (8, 0)}, ValueError, r"tile\[1\] must be at least 1"),
        ({"chunk": 10, "columns": 3}, ValueError, "columns needs a tile"),
    ],
)
def test_bad_options_are_named(options, error, message):
    with pytest.raises(error, match=message):
        ChunkTopK(**options)


def test_a_tile_goes_through_json_as_a_list():
    part = ChunkTopK(16, 2, tile=(4, 4), columns=100)
    config = part.get_config()
    assert config["tile"] == [4, 4]
    assert ChunkTopK.from_config(config) == part


def test_one_of_a_hundred_takes_seven_bits_a_position():
    header = codec(100).encode(normal(100_000)).header()
    assert header["coding"] == "chunk-local"
    assert header["index_nbytes"] == 8 + 7 * 1000 // 8
    by_gaps = gradwire.Codec(sparsify=ChunkTopK(100), memory=NoMemory(), indices="rice")
    assert by_gaps.encode(normal(100_000)).header()["index_nbytes"] > 920


def test_what_tiles_leave_is_kept():
    shape = (200, 150)
    part = ChunkTopK(4096, 64, tile=(64, 64))
    sender = gradwire.Codec(sparsify=part, quantize=BFloat16(), memory=Residual(decay=0.5))
    sender = sender.for_shape(shape)
    state = sender.init_state(200 * 150)
    kept = np.zeros(200 * 150, np.float32)
    for step in range(4):
        x = normal(*shape, seed=step)
        total = x.ravel() + np.float32(0.5) * kept
        sent = gradwire.decode(sender.encode(x, state))
        kept = total - sent
        assert np.array_equal(state.residual, kept)
