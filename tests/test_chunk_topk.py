"""Chunk-top-k: the largest of each chunk or tile, against numpy."""

import numpy as np
import pytest

import gradwire
from gradwire.memory import NoMemory
from gradwire.sparsify import ChunkTopK


def codec(*args, **options) -> gradwire.Codec:
    return gradwire.Codec(sparsify=ChunkTopK(*args, **options), memory=NoMemory())


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


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


def test_a_tile_goes_through_json_as_a_list():
    part = ChunkTopK(16, 2, tile=(4, 4), columns=100)
    config = part.get_config()
    assert config["tile"] == [4, 4]
    assert ChunkTopK.from_config(config) == part
