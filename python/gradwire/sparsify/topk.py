"""A number of entries: the largest of a tensor or of each chunk, or randomly drawn ones."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Annotated, ClassVar, Self

from gradwire import _validate
from gradwire._validate import Check, Entries, ProperShare, Ratio, Seed, Share
from gradwire.sparsify.base import OwnSelection, Sparsifier

_RatioOrK = Annotated[float, Check(_validate.ratio, k=True)]


def _tile(name: str, value: object) -> tuple[int, int]:
    rows, columns = _validate.pair(name, value, "rows, columns")
    high = _validate.MAX_NUMEL
    return (
        _validate.integer(f"{name}[0]", rows, low=1, high=high),
        _validate.integer(f"{name}[1]", columns, low=1, high=high),
    )


@dataclasses.dataclass(frozen=True, repr=False, kw_only=True)
class TopK(OwnSelection):
    """Select exactly the k entries of largest magnitude, by radix selection on the float bits.

    Parameters
    ----------
    ratio : float, optional
        Share of the entries to send: k = max(1, floor(ratio * n)), 0 < ratio <= 1.
    k : int, optional
        Number of entries, at least 1, instead of ``ratio``.
        A tensor with fewer non-zeros sends those.

    Raises
    ------
    TypeError, ValueError
        Not exactly one of the two is given, or it is out of its range.
    """

    ratio: _RatioOrK | None = None
    k: Entries | None = None
    kind: ClassVar[str] = "topk"

    def __post_init__(self) -> None:
        _validate.either("TopK", ratio=self.ratio, k=self.k)
        super().__post_init__()


@dataclasses.dataclass(frozen=True, repr=False, kw_only=True)
class RandomK(Sparsifier):
    """Select k entries uniformly at random without replacement.

    The positions depend only on the seed, the name of the state (`Codec.init_state`) and its step
    count, and take nine bytes per frame, whatever k is. Ranks that agree on these draw the same
    positions, and every step draws new ones. No other random state is read or written.

    Every drawn entry is sent, including zeros, so that all ranks have the same positions. A limit
    on the size of the frame reduces the number of entries drawn, equally on all ranks with the same
    limit.

    With a residual, a step costs one pass over n values. Without a memory only the drawn entries
    are read, so a non-finite value is detected only if it is drawn.

    Parameters
    ----------
    ratio : float, optional
        Share of the entries to send: k = max(1, floor(ratio * n)), 0 < ratio <= 1.
    k : int, optional
        Number of entries, at least 1, instead of ``ratio``.
        A tensor with fewer entries sends all of them.
    block : bool
        Draw one run of k consecutive entries that starts anywhere and wraps around the end.
    seed : int
        0 to 2**64 - 1.
    scaled : bool
        Multiply values by n / k, which makes the decoded tensor an unbiased estimate. Only for
        codecs without a memory.

    Raises
    ------
    TypeError, ValueError
        Not exactly one of ``ratio`` and ``k`` is given, or an option is out of its range.

    References
    ----------
    Konečný, McMahan, Yu, Richtárik, Suresh, Bacon, "Federated Learning: Strategies for Improving
    Communication Efficiency", arXiv 1610.05492 (2016), section 2: a random mask, from a seed.

    Stich, Cordonnier, Jaggi, "Sparsified SGD with Memory", NeurIPS 2018, section 2: with a memory.
    """

    ratio: _RatioOrK | None = None
    k: Entries | None = None
    block: bool = False
    seed: Annotated[int, Check(_validate.integer, low=0, high=2**64 - 1)] = 0
    scaled: bool = False
    kind: ClassVar[str] = "random_k"
    selects: ClassVar[bool] = True
    shared: ClassVar[bool] = True
    magnitude: ClassVar[str | None] = None

    def __post_init__(self) -> None:
        _validate.either("RandomK", ratio=self.ratio, k=self.k)
        super().__post_init__()

    def count(self, numel: int) -> int:
        if self.ratio is not None:
            return min(max(1, math.floor(self.ratio * numel)), numel)
        assert self.k is not None
        return min(self.k, numel)


@dataclasses.dataclass(frozen=True, repr=False)
class SampledTopK(OwnSelection):
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

    ratio: Ratio
    _: dataclasses.KW_ONLY
    sample_ratio: Share = 0.01
    strided: bool = True
    resample: bool = True
    upper: Annotated[float, Check(_validate.positive, above=1)] = 1.3
    lower: ProperShare = 0.8
    seed: Seed = 0
    kind: ClassVar[str] = "sampled_topk"


@dataclasses.dataclass(frozen=True, repr=False)
class ChunkTopK(OwnSelection):
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

    Raises
    ------
    ValueError
        There are columns, but no tile.

    References
    ----------
    Chen et al., "ScaleCom: Scalable Sparsified Gradient Compression for Communication-Efficient
    Distributed Training", NeurIPS 2020, section 3: one entry per chunk.

    Sarfi, Thérien, Lidin, Belilovsky, "Communication Efficient LLM Pre-training with SparseLoCo",
    arXiv 2508.15706, 2025: tiles, whose sides must divide those of the matrix there.
    """

    chunk: Annotated[int, Check(_validate.integer, low=1, high=2**31)]
    k: Entries = 1
    _: dataclasses.KW_ONLY
    tile: Annotated[tuple[int, int], Check(_tile)] | None = None
    columns: Entries | None = None
    kind: ClassVar[str] = "chunk_topk"

    def __post_init__(self) -> None:
        super().__post_init__()
        needless = self.columns is not None and self.tile is None
        _validate.require(not needless, "columns needs a tile, got columns={}", self.columns)

    def for_shape(self, shape: Sequence[int]) -> Self:
        """Return the part for tensors of this shape: tiles for matrices, chunks otherwise."""
        if self.tile is None or self.columns is not None:
            return self
        if len(shape) != 2 or math.prod(shape) == 0:
            return dataclasses.replace(self, tile=None)
        return dataclasses.replace(self, columns=shape[1])
