"""Natural compression."""

from gradwire.codec import Codec
from gradwire.exchange import Exchange
from gradwire.memory import Memory
from gradwire.presets._preset import DROP, GATHER, preset
from gradwire.quantize import Exponent
from gradwire.sparsify import All

__all__ = ["natural"]


@preset(
    summary="every entry as a sign and a power of two, stochastically rounded",
    paper="Horváth, Ho, Horváth, Sahu, Canini, Richtárik: Natural Compression for Distributed Deep "
    "Learning, MSML 2022",
    example={},
)
def natural(*, seed: int = 0, memory: Memory = DROP, exchange: Exchange = GATHER) -> Codec:
    """Send every entry as a sign and a stochastically rounded power of two: a quarter of the bytes.

    The rounding is unbiased, so no memory is needed.

    Parameters
    ----------
    seed : int
        Seed of the random numbers; see `gradwire.quantize.Exponent`.
    memory, exchange
        The other parts of the codec.

    References
    ----------
    Horváth, Ho, Horváth, Sahu, Canini, Richtárik, "Natural Compression for Distributed Deep
    Learning", MSML 2022.
    """
    return Codec(sparsify=All(), quantize=Exponent(seed=seed), memory=memory, exchange=exchange)
