"""Presets that send every entry, in fewer bits."""

from typing import Literal

from gradwire._codec import BY_RANKS, EXACT, KEEP, Codec
from gradwire.exchange import Exchange
from gradwire.memory import AdamCorrection, Memory, NoMemory
from gradwire.presets._registry import preset
from gradwire.quantize import Exponent, Float8, Quantizer, SignScale, Ternary, TwoMeans, Uniform
from gradwire.sparsify import All

__all__ = ["adam_onebit", "dense", "float8", "natural", "onebit", "qsgd", "signsgd", "terngrad"]

_DROP = NoMemory()


@preset(
    summary="the signs of Adam's local step and one magnitude per tensor, with error feedback",
    paper="Tang, Gan, Awan, Rajbhandari, Li, Lian, Liu, Zhang, He: 1-bit Adam: Communication "
    "Efficient Large-Scale Training with Adam's Convergence Speed, ICML 2021",
)
def adam_onebit(
    *,
    scale: Literal["mean", "rms"] = "mean",
    beta2: float | None = None,
    eps: float | None = None,
    exchange: Exchange = BY_RANKS,
) -> Codec:
    """Send one bit per entry of each rank's own Adam steps: its sign, and one magnitude for all.

    What is decoded is an update and not a gradient; attached, `torch.optim.AdamW` subtracts it, and
    ``beta2`` and ``eps`` are the optimizer's unless they are given. In the paper all ranks share
    the second moment of a dense warm-up, and send a momentum. Here each rank keeps its own second
    moment up to date from the start, and sends the step.
    """
    memory = AdamCorrection(beta2=beta2, eps=eps)
    return Codec(sparsify=All(), quantize=SignScale(scale=scale), memory=memory, exchange=exchange)


@preset(
    summary="every entry, in 32 or 16 bits",
    paper=None,
)
def dense(
    *, quantize: Quantizer = EXACT, memory: Memory = _DROP, exchange: Exchange = BY_RANKS
) -> Codec:
    """Send every entry: the baseline, or a cast to 16 bits with a 16-bit quantizer.

    With ``memory=gradwire.memory.Residual()`` the rounding error of the cast is fed back.
    `gradwire.exchange.AllReduce` sums the values on the wire and rounds every partial sum to the
    quantizer's type; `gradwire.exchange.AllGather` sums them in float32 on every rank.
    """
    return Codec(sparsify=All(), quantize=quantize, memory=memory, exchange=exchange)


@preset(
    summary="every entry as a sign and a power of two, stochastically rounded",
    paper="Horváth, Ho, Horváth, Sahu, Canini, Richtárik: Natural Compression for Distributed Deep "
    "Learning, MSML 2022",
)
def natural(*, seed: int = 0, memory: Memory = _DROP, exchange: Exchange = BY_RANKS) -> Codec:
    """Send every entry as a sign and a stochastically rounded power of two: a quarter of the bytes.

    The rounding is unbiased, so no memory is needed.
    """
    return Codec(sparsify=All(), quantize=Exponent(seed=seed), memory=memory, exchange=exchange)


@preset(
    summary="every entry as an 8-bit float",
    paper="Micikevicius et al.: FP8 Formats for Deep Learning, arXiv 2022; Wang, Choi, Brand, "
    "Chen, Gopalakrishnan: Training Deep Neural Networks with 8-bit Floating Point Numbers, "
    "NeurIPS 2018",
)
def float8(
    format: Literal["e4m3", "e5m2"] = "e4m3",
    *,
    rounding: Literal["nearest", "stochastic"] = "nearest",
    block: int | None = 256,
    seed: int = 0,
    memory: Memory = _DROP,
    exchange: Exchange = BY_RANKS,
) -> Codec:
    """Send every entry as an 8-bit float: a quarter of the bytes.

    With ``memory=gradwire.memory.Residual()`` the rounding error is fed back. Sums over ranks are
    computed in float32. The format of the second paper, 1-5-2, is E5M2.
    """
    quantize = Float8(format, rounding=rounding, block=block, seed=seed)
    return Codec(sparsify=All(), quantize=quantize, memory=memory, exchange=exchange)


@preset(
    summary="one bit per entry and two means per column, with error feedback",
    paper="Seide, Fu, Droppo, Li, Yu: 1-Bit Stochastic Gradient Descent and its Application to "
    "Data-Parallel Distributed Training of Speech DNNs, Interspeech 2014",
    example={"column": 128},
)
def onebit(
    *, column: int | None = None, memory: Memory = KEEP, exchange: Exchange = BY_RANKS
) -> Codec:
    """Send one bit per entry, which decodes to the mean of its sign and column."""
    return Codec(sparsify=All(), quantize=TwoMeans(column=column), memory=memory, exchange=exchange)


@preset(
    summary="one bit per entry and one magnitude per tensor, with error feedback",
    paper="Karimireddy, Rebjock, Stich, Jaggi: Error Feedback Fixes SignSGD and other Gradient "
    "Compression Schemes, ICML 2019",
)
def signsgd(
    *, scale: Literal["mean", "rms"] = "mean", memory: Memory = KEEP, exchange: Exchange = BY_RANKS
) -> Codec:
    """Send the sign of every entry, one bit each, and one magnitude for the whole tensor."""
    return Codec(sparsify=All(), quantize=SignScale(scale=scale), memory=memory, exchange=exchange)


@preset(
    summary="two bits per entry: minus, zero or plus, stochastically rounded",
    paper="Wen, Xu, Yan, Wu, Wang, Chen, Li: TernGrad: Ternary Gradients to Reduce Communication "
    "in Distributed Deep Learning, NeurIPS 2017",
)
def terngrad(
    *,
    clip: float | None = 2.5,
    seed: int = 0,
    memory: Memory = _DROP,
    exchange: Exchange = BY_RANKS,
) -> Codec:
    """Send two bits per entry: zero or plus or minus one magnitude, stochastically rounded.

    There is no memory, as in the paper: the rounding is unbiased for the clipped gradient, and its
    error is larger than a memory can feed back.
    """
    return Codec(
        sparsify=All(), quantize=Ternary(clip=clip, seed=seed), memory=memory, exchange=exchange
    )


@preset(
    summary="a few bits per entry: levels of a uniform grid, stochastically rounded",
    paper="Alistarh, Grubic, Li, Tomioka, Vojnovic: QSGD: Communication-Efficient SGD via Gradient "
    "Quantization and Encoding, NeurIPS 2017",
)
def qsgd(
    bits: int = 4,
    *,
    block: int = 512,
    norm: Literal["l2", "max"] = "l2",
    seed: int = 0,
    memory: Memory = _DROP,
    exchange: Exchange = BY_RANKS,
) -> Codec:
    """Send a sign and a stochastically rounded level per entry.

    Levels take a fixed number of bits; the paper also gives a variable-length code. It uses no
    memory: the rounding is unbiased. With one, the levels must be fine enough for it
    (`gradwire.quantize.Quantizer.contracts`): ``norm="max"``, or shorter blocks.
    """
    quantize = Uniform(bits=bits, block=block, norm=norm, seed=seed)
    return Codec(sparsify=All(), quantize=quantize, memory=memory, exchange=exchange)
