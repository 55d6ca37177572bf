"""SIDCo."""

from typing import Literal

from gradwire.codec import Codec
from gradwire.memory import Memory
from gradwire.presets._preset import EXACT, KEEP, preset
from gradwire.quantize import Quantizer
from gradwire.sparsify import SID

__all__ = ["sidco"]


@preset(
    summary="about k entries above a threshold from fitted distributions",
    paper="Abdelmoniem, Elzanaty, Alouini, Canini: An Efficient Statistical-based Gradient "
    "Compression Technique for Distributed Training Systems, MLSys 2021",
    example={"ratio": 0.01},
)
def sidco(
    ratio: float,
    *,
    distribution: Literal["pareto", "exponential", "gamma"] = "pareto",
    stages: Literal["adaptive", "paper", "tracking"] | int = "adaptive",
    band: tuple[float, float] | None = (0.8, 1.25),
    quantize: Quantizer = EXACT,
    memory: Memory = KEEP,
) -> Codec:
    """Send about ``ratio`` of the entries, above a threshold from a fitted distribution.

    ``stages="paper", band=None`` is the published method. The defaults keep the achieved count
    within the band, even where the published controller gets stuck.

    Parameters
    ----------
    ratio, distribution, stages, band
        See `gradwire.sparsify.SID`.
    quantize, memory
        The other parts of the codec.

    References
    ----------
    Abdelmoniem, Elzanaty, Alouini, Canini, "An Efficient Statistical-based Gradient Compression
    Technique for Distributed Training Systems", MLSys 2021.
    """
    sparsify = SID(ratio, distribution=distribution, stages=stages, band=band)
    return Codec(sparsify=sparsify, quantize=quantize, memory=memory)
