"""SparseLoCo."""

from gradwire.codec import Codec
from gradwire.exchange import AllGather, Exchange
from gradwire.memory import Memory, Residual
from gradwire.presets._preset import preset
from gradwire.quantize import Codebook, Quantizer
from gradwire.sparsify import ChunkTopK

__all__ = ["sparseloco"]

# Parts are immutable, so one instance of each can be the default of all codecs.
_TWO_BITS = Codebook(2)
_FADING = Residual(decay=0.95)
_GATHER = AllGather()


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
    exchange: Exchange = _GATHER,
) -> Codec:
    """Send the largest entries of each tile with 2-bit values and a decaying residual.

    Designed for pseudo-gradients: the change of a model over many local steps. Use
    `Codec.for_shape` for each tensor; it divides matrices into tiles and everything else into
    chunks.

    Parameters
    ----------
    k, chunk, tile
        See `gradwire.sparsify.ChunkTopK`.
    quantize, memory
        As published: 2 bits per value and a residual that decays by 0.95 per step. Here the two
        bits are a sign and one of two fitted magnitudes; in the paper they select one of four bins
        around the mean, of which the largest entries of a tile use only two.
    exchange
        The authors' code averages over senders: ``gradwire.exchange.AllGather(mean="senders")``.

    References
    ----------
    Sarfi, Thérien, Lidin, Belilovsky, "Communication Efficient LLM Pre-training with SparseLoCo",
    arXiv 2025. The authors' code sends 12-bit positions and one byte per value; here a position
    takes about 7.5 bits and a value 2.
    """
    return Codec(
        sparsify=ChunkTopK(chunk, k, tile=tile),
        quantize=quantize,
        memory=memory,
        exchange=exchange,
    )
