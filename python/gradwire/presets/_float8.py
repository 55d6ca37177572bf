"""Every entry in 8 bits."""

from typing import Literal

from gradwire.codec import Codec
from gradwire.exchange import Exchange
from gradwire.memory import Memory
from gradwire.presets._preset import DROP, GATHER, preset
from gradwire.quantize import Float8
from gradwire.sparsify import All

__all__ = ["float8"]


@preset(
    summary="every entry as an 8-bit float",
    paper="Micikevicius et al.: FP8 Formats for Deep Learning, arXiv 2022; Wang, Choi, Brand, "
    "Chen, Gopalakrishnan: Training Deep Neural Networks with 8-bit Floating Point Numbers, "
    "NeurIPS 2018",
    example={},
)
def float8(
    format: Literal["e4m3", "e5m2"] = "e4m3",
    *,
    rounding: Literal["nearest", "stochastic"] = "nearest",
    block: int | None = 256,
    seed: int = 0,
    memory: Memory = DROP,
    exchange: Exchange = GATHER,
) -> Codec:
    """Send every entry as an 8-bit float: a quarter of the bytes.

    With ``memory=gradwire.memory.Residual()`` the rounding error is fed back. Sums over ranks are
    computed in float32.

    Parameters
    ----------
    format, rounding, block, seed
        See `gradwire.quantize.Float8`.
    memory, exchange
        The other parts of the codec.

    References
    ----------
    Micikevicius et al., "FP8 Formats for Deep Learning", arXiv 2022; Wang, Choi, Brand, Chen,
    Gopalakrishnan, "Training Deep Neural Networks with 8-bit Floating Point Numbers", NeurIPS 2018:
    the 1-5-2 format.
    """
    quantize = Float8(format, rounding=rounding, block=block, seed=seed)
    return Codec(sparsify=All(), quantize=quantize, memory=memory, exchange=exchange)
