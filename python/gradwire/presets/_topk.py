"""Exact top-k."""

from gradwire.codec import Codec
from gradwire.memory import Memory
from gradwire.presets._preset import EXACT, KEEP, preset
from gradwire.quantize import Quantizer
from gradwire.sparsify import TopK

__all__ = ["topk"]


@preset(
    summary="exactly the k largest entries, the rest kept for later",
    paper="Aji, Heafield: Sparse Communication for Distributed Gradient Descent, EMNLP 2017; "
    "Stich, Cordonnier, Jaggi: Sparsified SGD with Memory, NeurIPS 2018",
    example={"ratio": 0.01},
)
def topk(
    ratio: float | None = None,
    *,
    k: int | None = None,
    quantize: Quantizer = EXACT,
    memory: Memory = KEEP,
) -> Codec:
    """Send exactly the k largest entries; keep the rest for later.

    Parameters
    ----------
    ratio, k
        See `gradwire.sparsify.TopK`. Pass exactly one of the two.
    quantize, memory
        The other parts of the codec.

    References
    ----------
    Aji, Heafield, "Sparse Communication for Distributed Gradient Descent", EMNLP 2017.

    Stich, Cordonnier, Jaggi, "Sparsified SGD with Memory", NeurIPS 2018.
    """
    return Codec(sparsify=TopK(ratio=ratio, k=k), quantize=quantize, memory=memory)
