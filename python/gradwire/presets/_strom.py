"""Strom's threshold quantization."""

from gradwire.codec import Codec
from gradwire.memory import Memory
from gradwire.presets._preset import KEEP, preset
from gradwire.quantize import SignScale
from gradwire.sparsify import Threshold

__all__ = ["strom"]


@preset(
    summary="plus or minus the threshold for all entries beyond it, the rest kept for later",
    paper="Strom: Scalable Distributed DNN Training Using Commodity GPU Cloud Computing, "
    "Interspeech 2015",
    example={"threshold": 0.005},
)
def strom(threshold: float, *, memory: Memory = KEEP) -> Codec:
    """Send plus or minus the threshold for every entry beyond it, and keep the difference.

    Parameters
    ----------
    threshold : float
        In the units of the tensor, greater than 0; see `gradwire.sparsify.Threshold`.
    memory
        What happens to entries that are not sent.

    Raises
    ------
    ValueError, TypeError
        A threshold that is not a positive number.

    References
    ----------
    Strom, "Scalable Distributed DNN Training Using Commodity GPU Cloud Computing",
    Interspeech 2015.
    """
    if threshold == 0:
        raise ValueError(
            "threshold must be greater than 0, got 0: every entry would be sent as zero"
        )
    return Codec(
        sparsify=Threshold(threshold), quantize=SignScale(scale="threshold"), memory=memory
    )
