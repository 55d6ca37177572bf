"""Signs with error feedback."""

from typing import Literal

from gradwire.codec import Codec
from gradwire.exchange import Exchange
from gradwire.memory import Memory
from gradwire.presets._preset import GATHER, KEEP, preset
from gradwire.quantize import SignScale
from gradwire.sparsify import All

__all__ = ["signsgd"]


@preset(
    summary="one bit per entry and one magnitude per tensor, with error feedback",
    paper="Karimireddy, Rebjock, Stich, Jaggi: Error Feedback Fixes SignSGD and other Gradient "
    "Compression Schemes, ICML 2019",
    example={},
)
def signsgd(
    *, scale: Literal["mean", "rms"] = "mean", memory: Memory = KEEP, exchange: Exchange = GATHER
) -> Codec:
    """Send the sign of every entry, one bit each, and one magnitude for the whole tensor.

    Parameters
    ----------
    scale
        The mean magnitude, or the root mean square; see `gradwire.quantize.SignScale`.
    memory
        What happens to the quantization error.
    exchange
        How ranks combine their frames. `gradwire.exchange.QuantizedAllReduce` is for many of them.

    References
    ----------
    Karimireddy, Rebjock, Stich, Jaggi, "Error Feedback Fixes SignSGD and other Gradient Compression
    Schemes", ICML 2019.
    """
    return Codec(sparsify=All(), quantize=SignScale(scale=scale), memory=memory, exchange=exchange)
