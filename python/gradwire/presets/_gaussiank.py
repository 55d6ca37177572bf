"""Gaussian-k."""

from gradwire.codec import Codec
from gradwire.memory import Memory
from gradwire.presets._preset import EXACT, KEEP, preset
from gradwire.quantize import Quantizer
from gradwire.sparsify import Gaussian

__all__ = ["gaussiank"]


@preset(
    summary="about k entries, above a threshold from a normal distribution, corrected twice",
    paper="Shi, Chu, Cheung, See: Understanding Top-k Sparsification in Distributed Deep Learning, "
    "arXiv 1911.08772 (2019)",
    example={"ratio": 0.01},
)
def gaussiank(
    ratio: float,
    *,
    rounds: int = 2,
    band: tuple[float, float] | None = None,
    quantize: Quantizer = EXACT,
    memory: Memory = KEEP,
) -> Codec:
    """Send about ``ratio`` of the entries, above a threshold from a normal distribution.

    The corrections of the threshold follow the authors' code (hclhkbu/GaussianK-SGD), not the
    paper's text: see `gradwire.sparsify.Gaussian`.

    Parameters
    ----------
    ratio, rounds, band
        See `gradwire.sparsify.Gaussian`.
    quantize, memory
        The other parts of the codec.

    References
    ----------
    Shi, Chu, Cheung, See, "Understanding Top-k Sparsification in Distributed Deep Learning",
    arXiv 1911.08772 (2019).
    """
    return Codec(
        sparsify=Gaussian(ratio, rounds=rounds, band=band), quantize=quantize, memory=memory
    )
