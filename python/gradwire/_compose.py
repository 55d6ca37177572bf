"""Which parts go together: what is refused, and what is warned of."""

import sys
import warnings

from gradwire.memory import Memory, NoMemory
from gradwire.quantize import Quantizer, SignScale, TwoMeans
from gradwire.sparsify import Sparsifier

__all__ = ["check"]

_SELECTORS = {"bin-max": "bin_max", "threshold": "threshold"}


def check(sparsify: Sparsifier, quantize: Quantizer, memory: Memory) -> None:
    """Refuse a composition without meaning, with the reason; warn of one that does not train.

    Raises
    ------
    ValueError
        A magnitude is wanted of a sparsifier that has none.
    """
    if isinstance(quantize, SignScale):
        selector = _SELECTORS.get(quantize.scale)
        if selector not in (None, sparsify.kind):
            raise ValueError(
                f"SignScale(scale={quantize.scale!r}) takes its magnitude from the sparsifier, and "
                f"{type(sparsify).__name__} has none: use scale='mean'"
            )
    if isinstance(quantize, SignScale | TwoMeans) and isinstance(memory, NoMemory):
        warnings.warn(
            f"{type(quantize).__name__} sends little more than signs, and without a memory what "
            "they leave out is lost in every step: training may not converge; use "
            "memory=gradwire.memory.Residual()",
            UserWarning,
            stacklevel=_outside(),
        )


def _outside() -> int:
    # The first frame that is not of this package's composition: a preset's caller, if there is one.
    depth = 1
    while True:
        try:
            module = sys._getframe(depth + 1).f_globals.get("__name__", "")
        except ValueError:
            return depth
        if not module.startswith("gradwire.") and module != "gradwire":
            return depth + 1
        depth += 1
