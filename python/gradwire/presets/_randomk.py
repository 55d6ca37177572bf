"""Random-k."""

from gradwire.codec import Codec
from gradwire.exchange import AllReduce, Exchange
from gradwire.memory import Memory, Residual
from gradwire.presets._preset import EXACT, KEEP, preset
from gradwire.quantize import Quantizer
from gradwire.sparsify import RandomK

__all__ = ["randomk"]

_REDUCE = AllReduce()


@preset(
    summary="entries drawn at random from a seed that all ranks share",
    paper="Konečný, McMahan, Yu, Richtárik, Suresh, Bacon: Federated Learning: Strategies for "
    "Improving Communication Efficiency, arXiv 1610.05492 (2016); "
    "Stich, Cordonnier, Jaggi: Sparsified SGD with Memory, NeurIPS 2018",
    example={"ratio": 0.1, "memory": Residual(decay=0.9)},
)
def randomk(
    ratio: float | None = None,
    *,
    k: int | None = None,
    block: bool = False,
    seed: int = 0,
    quantize: Quantizer = EXACT,
    memory: Memory = KEEP,
    exchange: Exchange = _REDUCE,
) -> Codec:
    """Send randomly drawn entries, at the same positions on all ranks; keep the rest for later.

    For the unbiased form without a memory, compose
    ``Codec(sparsify=RandomK(ratio=..., scaled=True), memory=NoMemory())``.

    Parameters
    ----------
    ratio, k, block, seed
        See `gradwire.sparsify.RandomK`.
    quantize, memory
        The other parts of the codec.
    exchange
        An all-reduce of the values by default. Quantizers whose codes cannot be summed need
        `gradwire.exchange.AllGather`.

    References
    ----------
    Konečný, McMahan, Yu, Richtárik, Suresh, Bacon, "Federated Learning: Strategies for Improving
    Communication Efficiency", arXiv 1610.05492 (2016).

    Stich, Cordonnier, Jaggi, "Sparsified SGD with Memory", NeurIPS 2018.
    """
    sparsify = RandomK(ratio=ratio, k=k, block=block, seed=seed)
    return Codec(sparsify=sparsify, quantize=quantize, memory=memory, exchange=exchange)
