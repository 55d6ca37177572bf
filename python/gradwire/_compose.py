"""Checks that the parts of a codec fit together."""

import sys
import warnings

from gradwire.memory import Memory
from gradwire.quantize import Quantizer
from gradwire.sparsify import Sparsifier

__all__ = ["check"]


def check(sparsify: Sparsifier, quantize: Quantizer, memory: Memory) -> None:
    """Raise an error for parts that do not fit together; warn of a codec that may not converge.

    Raises
    ------
    ValueError
        The quantizer needs something that the sparsifier does not have, or its error would grow in
        the memory.
    """
    quantize.check(sparsify)
    if memory.keeps:
        quantize.check_feedback()
    if quantize.needs_memory and not memory.keeps:
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
