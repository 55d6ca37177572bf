"""A fixed threshold."""

from gradwire.codec import Codec
from gradwire.memory import Memory
from gradwire.presets._preset import EXACT, KEEP, preset
from gradwire.quantize import Quantizer
from gradwire.sparsify import Threshold

__all__ = ["threshold"]


@preset(
    summary="all entries above a fixed threshold, the rest kept for later",
    paper="Strom: Scalable Distributed DNN Training Using Commodity GPU Cloud Computing, "
    "Interspeech 2015",
    example={"threshold": 0.01},
)
def threshold(threshold: float, *, quantize: Quantizer = EXACT, memory: Memory = KEEP) -> Codec:
    """Send every entry whose magnitude, residual included, is above a fixed threshold.

    Parameters
    ----------
    threshold : float
        In the units of the tensor; see `gradwire.sparsify.Threshold`.
    quantize, memory
        The other parts of the codec.

    References
    ----------
    Strom, "Scalable Distributed DNN Training Using Commodity GPU Cloud Computing",
    Interspeech 2015. The paper sends plus or minus the threshold (see `strom`); this sends values.
    """
    return Codec(sparsify=Threshold(threshold), quantize=quantize, memory=memory)
