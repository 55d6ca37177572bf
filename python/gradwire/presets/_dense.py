"""Every entry."""

from gradwire.codec import Codec
from gradwire.exchange import Exchange
from gradwire.memory import Memory
from gradwire.presets._preset import DROP, EXACT, GATHER, preset
from gradwire.quantize import Quantizer
from gradwire.sparsify import All

__all__ = ["dense"]


@preset(
    summary="every entry, in 32 or 16 bits",
    paper=None,
    example={},
)
def dense(
    *, quantize: Quantizer = EXACT, memory: Memory = DROP, exchange: Exchange = GATHER
) -> Codec:
    """Send every entry: the baseline, or a cast to 16 bits with a 16-bit quantizer.

    With ``memory=gradwire.memory.Residual()`` the rounding error of the cast is fed back.

    Parameters
    ----------
    quantize, memory
        The other parts of the codec.
    exchange : Exchange
        `gradwire.exchange.AllReduce` sums the values on the wire and rounds every partial sum to
        the quantizer's type; `gradwire.exchange.AllGather` sums them in float32 on every rank.
    """
    return Codec(sparsify=All(), quantize=quantize, memory=memory, exchange=exchange)
