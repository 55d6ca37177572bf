"""Natural compression."""

from gradwire.codec import Codec
from gradwire.exchange import Exchange
from gradwire.memory import Memory
from gradwire.presets._preset import DROP, GATHER, Preset
from gradwire.quantize import Exponent
from gradwire.sparsify import All

__all__ = ["PRESET", "natural"]


def natural(*, seed: int = 0, memory: Memory = DROP, exchange: Exchange = GATHER) -> Codec:
    """Send every entry as a sign and a power of two, rounded by chance: a quarter of the bytes.

    The mean of what is sent is what was given, so that nothing has to be remembered.

    Parameters
    ----------
    seed : int
        What the random numbers begin from; see `gradwire.quantize.Exponent`.
    memory, exchange
        The other parts of the codec.

    References
    ----------
    Horváth, Ho, Horváth, Sahu, Canini, Richtárik, "Natural Compression for Distributed Deep
    Learning", MSML 2022.
    """
    return Codec(sparsify=All(), quantize=Exponent(seed=seed), memory=memory, exchange=exchange)


PRESET = Preset(
    name="natural",
    build=natural,
    summary="every entry as a sign and a power of two, by chance",
    paper="Horváth, Ho, Horváth, Sahu, Canini, Richtárik: Natural Compression for Distributed Deep "
    "Learning, MSML 2022",
    example={},
)
