"""A fixed threshold."""

from gradwire.codec import Codec
from gradwire.memory import Memory
from gradwire.presets._preset import EXACT, KEEP, Preset
from gradwire.quantize import Quantizer
from gradwire.sparsify import Threshold

__all__ = ["PRESET", "threshold"]


def threshold(threshold: float, *, quantize: Quantizer = EXACT, memory: Memory = KEEP) -> Codec:
    """Send every entry whose magnitude, what was left over included, is above a fixed threshold.

    Parameters
    ----------
    threshold : float
        In units of the tensor; see `gradwire.sparsify.Threshold`.
    quantize, memory
        The other parts of the codec.

    References
    ----------
    Strom, "Scalable Distributed DNN Training Using Commodity GPU Cloud Computing",
    Interspeech 2015. There every entry is sent as plus or minus the threshold, here by its value.
    """
    return Codec(sparsify=Threshold(threshold), quantize=quantize, memory=memory)


PRESET = Preset(
    name="threshold",
    build=threshold,
    summary="all entries above a fixed threshold, the rest kept for later",
    paper="Strom: Scalable Distributed DNN Training Using Commodity GPU Cloud Computing, "
    "Interspeech 2015",
    example={"threshold": 0.01},
)
