"""Presets that send a few entries in one or two bits each."""

from gradwire._codec import BY_RANKS, KEEP, Codec, IndexCoding
from gradwire.exchange import Exchange
from gradwire.memory import Memory, Residual
from gradwire.presets._registry import composition, preset
from gradwire.quantize import Codebook, Quantizer, SignScale, TwoMeans
from gradwire.sparsify import BinMax, ChunkTopK, Threshold, TwoSided

__all__ = ["adacomp", "adaptive", "sparseloco", "strom"]

_TWO_BITS = Codebook(2)
_FADING = Residual(decay=0.95)


@preset(
    summary="entries near the maximum of their bin, as signs and one magnitude",
    paper="Chen, Choi, Brand, Agrawal, Zhang, Gopalakrishnan: AdaComp : Adaptive Residual Gradient "
    "Compression for Data-Parallel Distributed Training, AAAI 2018",
)
def adacomp(
    bin: int | None = None,
    *,
    soft: float = 2.0,
    memory: Memory = KEEP,
    indices: IndexCoding = "auto",
    exchange: Exchange = BY_RANKS,
) -> Codec:
    """Send the entries of each bin that pass AdaComp's soft threshold, as signs and one magnitude.

    How many are sent depends on the data: about 5 entries per bin of 50 and 6 per bin of 500 if
    gradients are homogeneous, fewer if only a few matter. The paper counts 8 or 16 bits per sent
    entry, including its position in the bin; frames take about 6 and 10.

    Choosing bins by the kind of layer needs `Codec.for_shape`.
    """
    return composition(
        BinMax(bin, soft=soft), SignScale(scale="bin-max"), memory, indices, exchange
    )


@preset(
    summary="a fixed proportion of the entries, one bit each and two means per column",
    paper="Dryden, Jacobs, Moon, Van Essen: Communication Quantization for Data-Parallel Training "
    "of Deep Neural Networks, MLHPC 2016",
)
def adaptive(
    proportion: float = 32.0,
    *,
    sample: int | None = 1024,
    seed: int = 0,
    column: int | None = None,
    memory: Memory = KEEP,
    indices: IndexCoding = "auto",
    exchange: Exchange = BY_RANKS,
) -> Codec:
    """Send about one entry in ``proportion``, with one bit per entry and two means per column.

    The paper sends all that is left after each epoch; `Codec.flush` does that. Columns that follow
    the tensor's shape need `Codec.for_shape`. Each column costs eight bytes, so it should have many
    times ``proportion`` entries.
    """
    return composition(
        TwoSided(proportion, sample=sample, seed=seed), TwoMeans(column), memory, indices, exchange
    )


@preset(
    summary="plus or minus the threshold for all entries beyond it, the rest kept for later",
    paper="Strom: Scalable Distributed DNN Training Using Commodity GPU Cloud Computing, "
    "Interspeech 2015",
    example={"threshold": 0.005},
)
def strom(
    threshold: float,
    *,
    memory: Memory = KEEP,
    indices: IndexCoding = "auto",
    exchange: Exchange = BY_RANKS,
) -> Codec:
    """Send plus or minus the threshold for every entry beyond it, and keep the difference.

    Parameters
    ----------
    threshold : float
        In the units of the tensor, greater than 0.
    """
    if threshold == 0:
        raise ValueError(
            "threshold must be greater than 0, got 0: every entry would be sent as zero"
        )
    return composition(
        Threshold(threshold), SignScale(scale="threshold"), memory, indices, exchange
    )


@preset(
    summary="the largest entries of each tile, in two bits, with a decaying residual",
    paper="Sarfi, Thérien, Lidin, Belilovsky: Communication Efficient LLM Pre-training with "
    "SparseLoCo, arXiv 2025",
    example={"k": 64},
)
def sparseloco(
    k: int = 64,
    *,
    chunk: int = 4096,
    tile: tuple[int, int] | None = (64, 64),
    quantize: Quantizer = _TWO_BITS,
    memory: Memory = _FADING,
    indices: IndexCoding = "auto",
    exchange: Exchange = BY_RANKS,
) -> Codec:
    """Send the largest entries of each tile with 2-bit values and a decaying residual.

    Designed for pseudo-gradients: the change of a model over many local steps. `Codec.for_shape`
    divides matrices into tiles, and everything else into chunks.

    As published, values have 2 bits, and the residual decays by 0.95 per step. Here the two bits
    are a sign and one of two fitted magnitudes; in the paper they select one of four bins around
    the mean, of which the largest entries of a tile use only two. The authors' code sends 12-bit
    positions and one byte per value; here a position takes about 7.5 bits. Their code averages over
    senders: ``exchange=gradwire.exchange.AllGather(mean="senders")``.
    """
    return composition(ChunkTopK(chunk, k, tile=tile), quantize, memory, indices, exchange)
