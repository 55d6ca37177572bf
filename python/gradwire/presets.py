"""Published methods and common baselines, each a composition of parts.

`PRESETS` lists them by name for tools and command lines.
"""

import dataclasses
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Literal

from gradwire.codec import Codec
from gradwire.memory import Memory, NoMemory, Residual
from gradwire.quantize import Float32, Quantizer
from gradwire.sparsify import SID, All, Threshold, TopK

__all__ = ["PRESETS", "Preset", "dense", "sidco", "threshold", "topk"]

# The defaults: parts are immutable, so that one of each serves all codecs.
_EXACT = Float32()
_KEEP = Residual()
_DROP = NoMemory()


def topk(
    ratio: float | None = None,
    *,
    k: int | None = None,
    quantize: Quantizer = _EXACT,
    memory: Memory = _KEEP,
) -> Codec:
    """Send exactly the largest entries, keep the rest for later.

    Parameters
    ----------
    ratio, k
        How many; see `gradwire.sparsify.TopK`. Exactly one of the two.
    quantize, memory
        The other parts of the codec.

    References
    ----------
    Aji, Heafield, "Sparse Communication for Distributed Gradient Descent", EMNLP 2017.

    Stich, Cordonnier, Jaggi, "Sparsified SGD with Memory", NeurIPS 2018.
    """
    return Codec(sparsify=TopK(ratio=ratio, k=k), quantize=quantize, memory=memory)


def sidco(
    ratio: float,
    *,
    distribution: Literal["pareto", "exponential", "gamma"] = "pareto",
    stages: Literal["adaptive", "paper", "tracking"] | int = "adaptive",
    band: tuple[float, float] | None = (0.8, 1.25),
    quantize: Quantizer = _EXACT,
    memory: Memory = _KEEP,
) -> Codec:
    """Send about ``ratio`` of the entries, above a threshold from a fitted distribution.

    ``stages="paper", band=None`` is the method as published; the defaults keep the achieved count
    within the band on distributions where the published controller stays stuck.

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


def threshold(threshold: float, *, quantize: Quantizer = _EXACT, memory: Memory = _KEEP) -> Codec:
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


def dense(*, quantize: Quantizer = _EXACT, memory: Memory = _DROP) -> Codec:
    """Send every entry: the baseline, and a cast to 16 bits with a 16-bit quantizer.

    With ``memory=gradwire.memory.Residual()`` what the cast rounds off is fed back.

    Parameters
    ----------
    quantize, memory
        The parts of the codec that are left to choose.
    """
    return Codec(sparsify=All(), quantize=quantize, memory=memory)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Preset:
    """A preset as tools list it."""

    name: str
    """The name of the function in this module and in `gradwire`."""
    build: Callable[..., Codec]
    """The function itself."""
    summary: str
    """One line of what it does."""
    paper: str | None
    """Authors, title, venue; None for a baseline."""


def _registry(*presets: Preset) -> Mapping[str, Preset]:
    return MappingProxyType({preset.name: preset for preset in presets})


PRESETS = _registry(
    Preset(
        name="topk",
        build=topk,
        summary="exactly the k largest entries, the rest kept for later",
        paper="Aji, Heafield: Sparse Communication for Distributed Gradient Descent, EMNLP 2017; "
        "Stich, Cordonnier, Jaggi: Sparsified SGD with Memory, NeurIPS 2018",
    ),
    Preset(
        name="sidco",
        build=sidco,
        summary="about k entries, above a threshold from fitted distributions, in two passes",
        paper="Abdelmoniem, Elzanaty, Alouini, Canini: An Efficient Statistical-based Gradient "
        "Compression Technique for Distributed Training Systems, MLSys 2021",
    ),
    Preset(
        name="threshold",
        build=threshold,
        summary="all entries above a fixed threshold, the rest kept for later",
        paper="Strom: Scalable Distributed DNN Training Using Commodity GPU Cloud Computing, "
        "Interspeech 2015",
    ),
    Preset(
        name="dense",
        build=dense,
        summary="every entry, in 32 or 16 bits",
        paper=None,
    ),
)
"""All presets by name, in the order to show them."""
