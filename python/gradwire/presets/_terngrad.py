"""TernGrad."""

from gradwire.codec import Codec
from gradwire.exchange import Exchange
from gradwire.memory import Memory
from gradwire.presets._preset import DROP, GATHER, preset
from gradwire.quantize import Ternary
from gradwire.sparsify import All

__all__ = ["terngrad"]


@preset(
    summary="two bits per entry: minus, zero or plus, stochastically rounded",
    paper="Wen, Xu, Yan, Wu, Wang, Chen, Li: TernGrad: Ternary Gradients to Reduce Communication "
    "in Distributed Deep Learning, NeurIPS 2017",
    example={},
)
def terngrad(
    *, clip: float | None = 2.5, seed: int = 0, memory: Memory = DROP, exchange: Exchange = GATHER
) -> Codec:
    """Send two bits per entry: zero or plus or minus one magnitude, stochastically rounded.

    Parameters
    ----------
    clip, seed
        See `gradwire.quantize.Ternary`.
    memory
        None, as in the paper: the rounding is unbiased for the clipped gradient, and its error is
        larger than a memory can feed back.
    exchange
        How ranks combine their frames. `gradwire.exchange.QuantizedAllReduce` is for many of them.

    References
    ----------
    Wen, Xu, Yan, Wu, Wang, Chen, Li, "TernGrad: Ternary Gradients to Reduce Communication in
    Distributed Deep Learning", NeurIPS 2017.
    """
    return Codec(
        sparsify=All(), quantize=Ternary(clip=clip, seed=seed), memory=memory, exchange=exchange
    )
