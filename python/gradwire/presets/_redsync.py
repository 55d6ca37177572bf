"""RedSync."""

from typing import Literal

from gradwire.codec import Codec
from gradwire.memory import Memory
from gradwire.presets._preset import EXACT, KEEP, preset
from gradwire.quantize import Quantizer
from gradwire.sparsify import Trimmed

__all__ = ["redsync"]


@preset(
    summary="k to 2k entries above a threshold between mean and maximum, or exactly k",
    paper="Fang, Fu, Yang, Hsieh: RedSync: Reducing Synchronization Bandwidth for Distributed Deep "
    "Learning Training System, JPDC 2019",
    example={"ratio": 0.01},
)
def redsync(
    ratio: float,
    *,
    method: Literal["trim", "search"] = "search",
    quantize: Quantizer = EXACT,
    memory: Memory = KEEP,
) -> Codec:
    """Send k to 2 k entries above a searched threshold, or exactly the k largest.

    The search usually ends without a suitable threshold and then sends exactly what `topk` sends;
    on heavy tails it nearly always does. The paper trims small layers and searches in large ones.

    Parameters
    ----------
    ratio, method
        See `gradwire.sparsify.Trimmed`.
    quantize, memory
        The other parts of the codec.

    References
    ----------
    Fang, Fu, Yang, Hsieh, "RedSync: Reducing Synchronization Bandwidth for Distributed Deep
    Learning Training System", JPDC 2019.
    """
    return Codec(sparsify=Trimmed(ratio, method=method), quantize=quantize, memory=memory)
