"""Checks that the parts of a codec fit together."""

import sys
import warnings

from gradwire.memory import Memory, NoMemory
from gradwire.quantize import Quantizer, SignScale, TwoMeans
from gradwire.sparsify import Sparsifier

__all__ = ["check"]

_SELECTORS = {"bin-max": "bin_max", "threshold": "threshold"}


def check(sparsify: Sparsifier, quantize: Quantizer, memory: Memory) -> None:
    """Raise an error for parts that do not fit together; warn of a codec that may not converge.

    Raises
    ------
    ValueError
        The quantizer takes its magnitude from the sparsifier, which has none.
    """
    if isinstance(quantize, SignScale):
        selector = _SELECTORS.get(quantize.scale)
        if selector not in (None, sparsify.kind):
            raise ValueError(
                f"SignScale(scale={quantize.scale!r}) takes its magnitude from the sparsifier, but "
                f"{type(sparsify).__name__} has none; use scale='mean'"
            )
    if isinstance(quantize, SignScale | TwoMeans) and isinstance(memory, NoMemory):
        warnings.warn(
            f"{type(quantize).__name__} sends little more than signs; without a memory the rest is "
            "lost in every step, and training may not converge; use "
            "memory=gradwire.memory.Residual()",
            UserWarning,
            stacklevel=_outside(),
        )


def _outside() -> int:
    # The first stack frame outside the package: the caller of a preset, or of Codec.
    depth = 1
    while True:
        try:
            module = sys._getframe(depth + 1).f_globals.get("__name__", "")
        except ValueError:
            return depth
        if not module.startswith("gradwire.") and module != "gradwire":
            return depth + 1
        depth += 1
