"""Sparsifiers: which entries are sent.

Only `All` and `RandomK` send exact zeros. Ties go to the lower index. A step on a tensor of n
entries costs one read of n values (with `gradwire.memory.Residual` also one read and one write of
the residual) plus work on the selected entries. The first step, and a step after a sudden change of
scale, may read the tensor twice.
"""

from gradwire import extension
from gradwire._part import Part
from gradwire.sparsify.all import All
from gradwire.sparsify.bin_max import BinMax
from gradwire.sparsify.chunk_topk import ChunkTopK
from gradwire.sparsify.gaussian import Gaussian
from gradwire.sparsify.random_k import RandomK
from gradwire.sparsify.sampled_topk import SampledTopK
from gradwire.sparsify.sid import SID
from gradwire.sparsify.threshold import Threshold
from gradwire.sparsify.topk import TopK
from gradwire.sparsify.trimmed import Trimmed
from gradwire.sparsify.two_sided import TwoSided

__all__ = [
    "SID",
    "SPARSIFIERS",
    "All",
    "BinMax",
    "ChunkTopK",
    "Gaussian",
    "RandomK",
    "SampledTopK",
    "Sparsifier",
    "Threshold",
    "TopK",
    "Trimmed",
    "TwoSided",
]

Sparsifier = (
    All
    | Threshold
    | TopK
    | SID
    | SampledTopK
    | ChunkTopK
    | BinMax
    | TwoSided
    | RandomK
    | Gaussian
    | Trimmed
    | extension.Sparsifier
)
"""Any sparsifier of this package, or one from a plugin."""

SPARSIFIERS: tuple[type[Part], ...] = (
    All,
    Threshold,
    TopK,
    SID,
    SampledTopK,
    ChunkTopK,
    BinMax,
    TwoSided,
    RandomK,
    Gaussian,
    Trimmed,
)
"""The sparsifiers of this package, for reading configurations."""
