"""The largest entries of each chunk (ScaleCom, SparseLoCo)."""

import dataclasses
import math
from collections.abc import Sequence
from typing import ClassVar, Self

from gradwire import _validate
from gradwire._part import Part

__all__ = ["ChunkTopK"]

_LONGEST = 2**31


@dataclasses.dataclass(frozen=True, repr=False)
class ChunkTopK(Part):
    """In each chunk of consecutive entries, exactly the k of the largest magnitude.

    The tensor is never searched as a whole, and how many entries go is known beforehand: k of each
    chunk, unless a chunk has fewer non-zeros. Where every chunk sends k, positions are counted from
    the start of their chunk if that is shorter: 7 bits each for one of 100.

    A step costs two reads of n; a chunk is in the cache while it is searched.

    Parameters
    ----------
    chunk : int
        Entries of a chunk, 1 to 2**31. A shorter last one sends k too, if it has as many.
    k : int
        Entries that go of each chunk, at least 1.
    tile : (int, int), optional
        For matrices, chunks are tiles of so many rows and columns instead; those at the edges of
        the matrix may be smaller, so that any shape will do. Tensors of another number of
        dimensions are cut into chunks.
    columns : int, optional
        Columns of the matrix, which `for_shape` fills in. With a tile but no columns the shape is
        not known, and the tensor is cut into chunks.

    Raises
    ------
    ValueError, TypeError
        A value out of range or of the wrong type; columns without a tile.

    References
    ----------
    Chen et al., "ScaleCom: Scalable Sparsified Gradient Compression for Communication-Efficient
    Distributed Training", NeurIPS 2020, section 3: one entry of each chunk.

    Sarfi, Thérien, Lidin, Belilovsky, "Communication Efficient LLM Pre-training with SparseLoCo",
    arXiv 2508.15706, 2025: tiles. There the sides of a tile divide those of the matrix.
    """

    chunk: int
    k: int = 1
    _: dataclasses.KW_ONLY
    tile: tuple[int, int] | None = None
    columns: int | None = None
    kind: ClassVar[str] = "chunk_topk"

    def __post_init__(self) -> None:
        self._set("chunk", _validate.integer("chunk", self.chunk, low=1, high=_LONGEST))
        self._set("k", _validate.integer("k", self.k, low=1, high=_validate.MAX_NUMEL))
        if self.tile is not None:
            self._set("tile", _tile(self.tile))
        if self.columns is not None:
            if self.tile is None:
                raise ValueError(
                    f"columns goes with a tile, got columns={self.columns!r} and no tile"
                )
            high = _validate.MAX_NUMEL
            self._set("columns", _validate.integer("columns", self.columns, low=1, high=high))

    def for_shape(self, shape: Sequence[int]) -> Self:
        """Return the part for tensors of this shape: tiles for matrices, chunks for all else."""
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
