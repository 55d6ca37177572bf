"""The largest entries: of a tensor, exactly or by a sample, and of each chunk."""

import dataclasses
import math
from collections.abc import Sequence
from typing import ClassVar, Self

from gradwire import _validate
from gradwire.sparsify.base import Sparsifier


@dataclasses.dataclass(frozen=True, repr=False, kw_only=True)
class TopK(Sparsifier):
    """Select exactly the k entries of largest magnitude, by radix selection on the float bits.

    Parameters
    ----------
    ratio : float, optional
        Share of the entries to send: k = max(1, floor(ratio * n)), 0 < ratio <= 1.
    k : int, optional
        Number of entries, at least 1, instead of ``ratio``.
        A tensor with fewer non-zeros sends those.
    """

    ratio: float | None = None
    k: int | None = None
    kind: ClassVar[str] = "topk"
    selects: ClassVar[bool] = True
    shared: ClassVar[bool] = False
    magnitude: ClassVar[str | None] = None

    def __post_init__(self) -> None:
        _validate.either("TopK", ratio=self.ratio, k=self.k)
        self._check_given("ratio", _validate.ratio, k=True)
        self._check_given("k", _validate.integer, low=1, high=_validate.MAX_NUMEL)


@dataclasses.dataclass(frozen=True, repr=False)
class SampledTopK(Sparsifier):
    """Select at most k entries, at or above a threshold estimated from a sample (DGC).

    The threshold is the magnitude that a fraction k / n of the sample exceeds. If fewer than
    ``lower * k`` entries reach it, it is lowered, up to ten times. If more than k reach it, the
    largest k are sent. The authors' code keeps the first k by position instead, which starves the
    end of the tensor. A steady step reads the n values once, plus the sample.

    Parameters
    ----------
    ratio : float
        k = ceil(ratio * n), 0 < ratio <= 1.
    sample_ratio : float
        Fraction of entries to sample, 0 < sample_ratio <= 1. At least 2 / ratio are sampled.
    strided : bool
        Sample with an odd stride from a random start. False samples with replacement.
    resample : bool
        If far too many entries reach the threshold, select among them at once ("hierarchical").
        False raises the threshold first. At most k are sent in either case.
    upper : float
        ``upper * k`` entries and more, if ``resample`` is off, are far too many and multiply the
        threshold by ``upper``. Greater than 1.
    lower : float
        Fewer than ``lower * k`` entries are too few and multiply the threshold by ``lower``.
        Between 0 and 1.
    seed : int
        Seed of the sample, which also depends on the name of the tensor and the step.

    References
    ----------
    Lin, Han, Mao, Wang, Dally, "Deep Gradient Compression: Reducing the Communication Bandwidth for
    Distributed Training", ICLR 2018, section 5; parameters of the authors' code.
    """

    ratio: float
    _: dataclasses.KW_ONLY
    sample_ratio: float = 0.01
    strided: bool = True
    resample: bool = True
    upper: float = 1.3
    lower: float = 0.8
    seed: int = 0
    kind: ClassVar[str] = "sampled_topk"
    selects: ClassVar[bool] = True
    shared: ClassVar[bool] = False
    magnitude: ClassVar[str | None] = None

    def __post_init__(self) -> None:
        self._check("ratio", _validate.ratio)
        self._check("sample_ratio", _validate.unit_interval)
        _validate.boolean("strided", self.strided)
        _validate.boolean("resample", self.resample)
        self._check("upper", _validate.positive)
        if self.upper <= 1.0:
            raise ValueError(f"upper must be greater than 1, got {self.upper!r}")
        self._check("lower", _validate.unit_interval, below=1)
        self._check("seed", _validate.integer, low=0)


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
        Columns of the matrix, only with a tile; `for_shape` fills it in. With a tile but no
        columns, the shape is unknown and the tensor is divided into chunks.

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
        self._check("chunk", _validate.integer, low=1, high=2**31)
        self._check("k", _validate.integer, low=1, high=_validate.MAX_NUMEL)
        self._check_given("tile", _tile)
        if self.columns is not None and self.tile is None:
            raise ValueError(f"columns needs a tile, got columns={self.columns!r} and no tile")
        self._check_given("columns", _validate.integer, low=1, high=_validate.MAX_NUMEL)

    def for_shape(self, shape: Sequence[int]) -> Self:
        """Return the part for tensors of this shape: tiles for matrices, chunks otherwise."""
        if self.tile is None or self.columns is not None:
            return self
        if len(shape) != 2 or math.prod(shape) == 0:
            return dataclasses.replace(self, tile=None)
        return dataclasses.replace(self, columns=shape[1])


def _tile(name: str, value: object) -> tuple[int, int]:
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise TypeError(f"{name} must be a pair (rows, columns) or None, got {value!r}")
    high = _validate.MAX_NUMEL
    rows, columns = (
        _validate.integer(f"{name}[{i}]", side, low=1, high=high) for i, side in enumerate(value)
    )
    return rows, columns
