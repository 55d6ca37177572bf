"""The largest entries of each chunk (ScaleCom, SparseLoCo)."""

import dataclasses
import math
from collections.abc import Sequence
from typing import ClassVar, Self

from gradwire import _validate
from gradwire.sparsify.base import Sparsifier

__all__ = ["ChunkTopK"]

_LONGEST = 2**31


@dataclasses.dataclass(frozen=True, repr=False)
class ChunkTopK(Sparsifier):
    """Select exactly the k entries of largest magnitude in each chunk of consecutive entries.

    There is no search over the whole tensor, and the number of entries is known in advance: k per
    chunk, or fewer if a chunk has fewer non-zeros. If every chunk sends k entries, positions are
    coded relative to the start of their chunk where that is shorter: 7 bits each for 1 of 100.

    A step reads the n values twice; a chunk stays in the cache while it is searched. That takes up
    to 16 bytes of scratch memory per entry of a chunk and thread. A chunk of more than 65536
    entries is searched like a tensor instead, which takes 16 bytes per entry for 3 k entries, or
    for 1/64 of the chunk if that is more. Tiles are always copied: 16 bytes per entry of a tile.

    Parameters
    ----------
    chunk : int
        Entries per chunk, 1 to 2**31. A shorter last chunk also sends k, if it has that many.
    k : int
        Entries to send per chunk, at least 1.
    tile : (int, int), optional
        Rows and columns of a tile. Matrices are divided into tiles instead of chunks; tiles at the
        edges may be smaller, so any shape works. Tensors with another number of dimensions are
        divided into chunks.
    columns : int, optional
        Columns of the matrix; `for_shape` fills it in. With a tile but no columns, the shape is
        unknown and the tensor is divided into chunks.

    Raises
    ------
    ValueError, TypeError
        A value out of range or of the wrong type; columns without a tile.

    References
    ----------
    Chen et al., "ScaleCom: Scalable Sparsified Gradient Compression for Communication-Efficient
    Distributed Training", NeurIPS 2020, section 3: one entry per chunk.

    Sarfi, Thérien, Lidin, Belilovsky, "Communication Efficient LLM Pre-training with SparseLoCo",
    arXiv 2508.15706, 2025: tiles, whose sides must divide those of the matrix there.
    """

    chunk: int
    k: int = 1
    _: dataclasses.KW_ONLY
    tile: tuple[int, int] | None = None
    columns: int | None = None
    kind: ClassVar[str] = "chunk_topk"
    selects: ClassVar[bool] = True
    shared: ClassVar[bool] = False
    magnitude: ClassVar[str | None] = None

    def __post_init__(self) -> None:
        self._set("chunk", _validate.integer("chunk", self.chunk, low=1, high=_LONGEST))
        self._set("k", _validate.integer("k", self.k, low=1, high=_validate.MAX_NUMEL))
        if self.tile is not None:
            self._set("tile", _tile(self.tile))
        if self.columns is not None:
            if self.tile is None:
                raise ValueError(f"columns needs a tile, got columns={self.columns!r} and no tile")
            high = _validate.MAX_NUMEL
            self._set("columns", _validate.integer("columns", self.columns, low=1, high=high))

    def for_shape(self, shape: Sequence[int]) -> Self:
        """Return the part for tensors of this shape: tiles for matrices, chunks otherwise."""
        if self.tile is None or self.columns is not None:
            return self
        if len(shape) != 2 or math.prod(shape) == 0:
            return dataclasses.replace(self, tile=None)
        return dataclasses.replace(self, columns=shape[1])


def _tile(value: object) -> tuple[int, int]:
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise TypeError(f"tile must be a pair (rows, columns) or None, got {value!r}")
    high = _validate.MAX_NUMEL
    rows, columns = (
        _validate.integer(f"tile[{i}]", side, low=1, high=high) for i, side in enumerate(value)
    )
    return rows, columns
