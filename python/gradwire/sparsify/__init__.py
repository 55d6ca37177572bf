"""Sparsifiers: which entries go onto the wire.

None of them but `RandomK` ever sends an exact zero, and ties go to the lower index. For a tensor of
n entries a step costs one read of n, with `gradwire.memory.Residual` one of the residual and one
write too, plus work on the survivors. A first step, or one after a sudden change, may read n again.
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
"""Any of the sparsifiers, and those of other distributions."""

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
"""All of this package, for configurations to be read back."""
