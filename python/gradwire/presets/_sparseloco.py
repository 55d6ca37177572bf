"""SparseLoCo."""

from gradwire.codec import Codec
from gradwire.exchange import AllGather, Exchange
from gradwire.memory import Memory, Residual
from gradwire.presets._preset import Preset
from gradwire.quantize import Codebook, Quantizer
from gradwire.sparsify import ChunkTopK

__all__ = ["PRESET", "sparseloco"]

# Defaults: parts are immutable, so that one of each serves all codecs.
_TWO_BITS = Codebook(2)
_FADING = Residual(decay=0.95)
_GATHER = AllGather()


def sparseloco(
    k: int = 64,
    *,
    chunk: int = 4096,
    tile: tuple[int, int] | None = (64, 64),
    quantize: Quantizer = _TWO_BITS,
    memory: Memory = _FADING,
    exchange: Exchange = _GATHER,
) -> Codec:
    """Send the largest entries of each tile in two bits, and forget the rest slowly.

    Made for what a model has moved over many local steps. Ask for `Codec.for_shape` of each tensor:
    matrices are cut into tiles then, everything else into chunks.

    Parameters
    ----------
    k, chunk, tile
        How many entries, and of what; see `gradwire.sparsify.ChunkTopK`.
    quantize, memory
        As published, two bits a value and a residual that decays by 0.95 a step. The two bits are a
        sign and one of two magnitudes here, fitted to the values; there they are four bins around
        the mean, of which the largest entries of a tile use two.
    exchange
        The code that was published takes the mean over senders,
        ``gradwire.exchange.AllGather(mean="senders")``.

    References
    ----------
    Sarfi, Thérien, Lidin, Belilovsky, "Communication Efficient LLM Pre-training with SparseLoCo",
    arXiv 2025. There positions take 12 bits and values a byte; here about 7.5 and 2 bits.
    """
    return Codec(
        sparsify=ChunkTopK(chunk, k, tile=tile),
        quantize=quantize,
        memory=memory,
        exchange=exchange,
    )


PRESET = Preset(
    name="sparseloco",
    build=sparseloco,
    summary="the largest entries of each tile, in two bits, with a fading residual",
    paper="Sarfi, Thérien, Lidin, Belilovsky: Communication Efficient LLM Pre-training with "
    "SparseLoCo, arXiv 2025",
    example={"k": 64},
)
