"""Signs with error feedback."""

from typing import Literal

from gradwire.codec import Codec
from gradwire.memory import Memory
from gradwire.presets._preset import KEEP, Preset
from gradwire.quantize import SignScale
from gradwire.sparsify import All

__all__ = ["PRESET", "signsgd"]


def signsgd(*, scale: Literal["mean", "rms"] = "mean", memory: Memory = KEEP) -> Codec:
    """Send one bit for every entry, its sign, and one magnitude for the whole tensor.

    Parameters
    ----------
    scale
        The mean of magnitudes, or the root of the mean square; see `gradwire.quantize.SignScale`.
    memory
        What happens to the rest.

    References
    ----------
    Karimireddy, Rebjock, Stich, Jaggi, "Error Feedback Fixes SignSGD and other Gradient Compression
    Schemes", ICML 2019.
    """
    return Codec(sparsify=All(), quantize=SignScale(scale=scale), memory=memory)


PRESET = Preset(
    name="signsgd",
    build=signsgd,
    summary="one bit an entry, one magnitude a tensor, the error kept for later",
    paper="Karimireddy, Rebjock, Stich, Jaggi: Error Feedback Fixes SignSGD and other Gradient "
    "Compression Schemes, ICML 2019",
    example={},
)
