"""Presets that send factors of low rank in place of matrices."""

from gradwire._codec import KEEP, Codec
from gradwire.exchange import LowRank
from gradwire.memory import NoMemory
from gradwire.presets._registry import preset
from gradwire.sparsify import All

__all__ = ["powersgd"]


@preset(
    summary="two factors of low rank in place of each matrix, summed by two all-reduces",
    paper="Vogels, Karimireddy, Jaggi: PowerSGD: Practical Low-Rank Gradient Compression for "
    "Distributed Optimization, NeurIPS 2019",
)
def powersgd(rank: int = 2, *, warm_start: bool = True, error_feedback: bool = True) -> Codec:
    """Send two factors of low rank in place of each matrix, summed by two all-reduces.

    What a rank sends does not grow with the number of ranks. The factors are made where ranks are
    averaged: in DDP and with Horovod. A frame of this codec, as `gradwire.Codec.encode` returns it,
    has every entry.

    Parameters
    ----------
    rank : int
        Rank of the approximation. The authors use 1 to 4.
    warm_start : bool
        Begin each step with the last one's second factor.
    error_feedback : bool
        Keep what the approximation misses, and add it to the next gradient.
    """
    return Codec(
        sparsify=All(),
        memory=KEEP if error_feedback else NoMemory(),
        exchange=LowRank(rank, warm_start=warm_start),
    )
