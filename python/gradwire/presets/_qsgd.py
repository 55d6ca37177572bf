"""QSGD."""

from typing import Literal

from gradwire.codec import Codec
from gradwire.exchange import Exchange
from gradwire.memory import Memory
from gradwire.presets._preset import DROP, GATHER, preset
from gradwire.quantize import Uniform
from gradwire.sparsify import All

__all__ = ["qsgd"]


@preset(
    summary="a few bits per entry: levels of a uniform grid, stochastically rounded",
    paper="Alistarh, Grubic, Li, Tomioka, Vojnovic: QSGD: Communication-Efficient SGD via Gradient "
    "Quantization and Encoding, NeurIPS 2017",
    example={},
)
def qsgd(
    bits: int = 4,
    *,
    block: int = 512,
    norm: Literal["l2", "max"] = "l2",
    seed: int = 0,
    memory: Memory = DROP,
    exchange: Exchange = GATHER,
) -> Codec:
    """Send a sign and a stochastically rounded level per entry.

    Levels take a fixed number of bits; the paper also gives a variable-length code.

    Parameters
    ----------
    bits, block, norm, seed
        See `gradwire.quantize.Uniform`.
    memory
        The paper uses no memory: the rounding is unbiased. With one, the levels must be fine enough
        for it (`gradwire.quantize.Quantizer.contracts`): ``norm="max"``, or shorter blocks.
    exchange
        How ranks combine their frames. `gradwire.exchange.QuantizedAllReduce` is for many of them.

    References
    ----------
    Alistarh, Grubic, Li, Tomioka, Vojnovic, "QSGD: Communication-Efficient SGD via Gradient
    Quantization and Encoding", NeurIPS 2017.
    """
    quantize = Uniform(bits=bits, block=block, norm=norm, seed=seed)
    return Codec(sparsify=All(), quantize=quantize, memory=memory, exchange=exchange)
