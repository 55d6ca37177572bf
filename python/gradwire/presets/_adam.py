"""Adam on each rank, sparse or in one bit."""

from typing import Literal

from gradwire.codec import Codec
from gradwire.exchange import Exchange
from gradwire.memory import AdamCorrection
from gradwire.presets._preset import GATHER, preset
from gradwire.quantize import BFloat16, Quantizer, SignScale
from gradwire.sparsify import All, TopK

__all__ = ["adam", "adam_onebit"]

# Parts are immutable, so one instance can be the default of all codecs.
_HALF = BFloat16()


@preset(
    summary="the largest entries of Adam's local step, the rest kept for later",
    paper="Kingma, Ba: Adam: A Method for Stochastic Optimization, ICLR 2015; Chen, Shen, Liu, "
    "Luo: Efficient-Adam: Communication-Efficient Distributed Adam, arXiv 2022",
    example={"ratio": 0.01},
)
def adam(
    ratio: float = 0.01,
    *,
    beta2: float = 0.999,
    eps: float = 1e-8,
    quantize: Quantizer = _HALF,
) -> Codec:
    """Send the largest entries of each rank's own Adam steps; keep the rest for later.

    What is decoded is an update and not a gradient: train with `gradwire.torch.optim.AdamW`, which
    subtracts it. Attached without a schedule, it sends more in the first steps: see
    `gradwire.schedule.recommended`.

    Parameters
    ----------
    ratio
        See `gradwire.sparsify.TopK`.
    beta2, eps
        See `gradwire.memory.AdamCorrection`.
    quantize
        How values are coded; what rounding takes away stays in the residual.

    References
    ----------
    Kingma, Ba, "Adam: A Method for Stochastic Optimization", ICLR 2015.

    Chen, Shen, Liu, Luo, "Efficient-Adam: Communication-Efficient Distributed Adam", arXiv 2022:
    a distributed Adam with error feedback. The composition with exact top-k is this library's.
    """
    memory = AdamCorrection(beta2=beta2, eps=eps)
    return Codec(sparsify=TopK(ratio=ratio), quantize=quantize, memory=memory)


@preset(
    summary="the signs of Adam's local step and one magnitude per tensor, with error feedback",
    paper="Tang, Gan, Awan, Rajbhandari, Li, Lian, Liu, Zhang, He: 1-bit Adam: Communication "
    "Efficient Large-Scale Training with Adam's Convergence Speed, ICML 2021",
    example={},
)
def adam_onebit(
    *,
    scale: Literal["mean", "rms"] = "mean",
    beta2: float = 0.999,
    eps: float = 1e-8,
    exchange: Exchange = GATHER,
) -> Codec:
    """Send one bit per entry of each rank's own Adam steps: its sign, and one magnitude for all.

    What is decoded is an update and not a gradient: train with `gradwire.torch.optim.AdamW`, which
    subtracts it.

    Parameters
    ----------
    scale
        The mean magnitude, or the root mean square; see `gradwire.quantize.SignScale`.
    beta2, eps
        See `gradwire.memory.AdamCorrection`.
    exchange
        How ranks combine their frames. `gradwire.exchange.QuantizedAllReduce` is for many of them.

    References
    ----------
    Tang, Gan, Awan, Rajbhandari, Li, Lian, Liu, Zhang, He, "1-bit Adam: Communication Efficient
    Large-Scale Training with Adam's Convergence Speed", ICML 2021. There the second moment is one
    for all ranks, that of a dense warm-up, after which it stays as it is and a momentum is sent;
    here each rank keeps its own up to date, there is no warm-up, and the step is sent.
    """
    memory = AdamCorrection(beta2=beta2, eps=eps)
    return Codec(sparsify=All(), quantize=SignScale(scale=scale), memory=memory, exchange=exchange)
