"""Quantizers: what values the selected entries take on the wire.

What rounding takes off an entry stays in the residual, where the codec has one.
"""

from gradwire._part import Part
from gradwire.quantize.floats import BFloat16, Float16, Float32

__all__ = ["QUANTIZERS", "BFloat16", "Float16", "Float32", "Quantizer"]

Quantizer = Float32 | BFloat16 | Float16
"""Any of the quantizers."""

QUANTIZERS: tuple[type[Part], ...] = (Float32, BFloat16, Float16)
"""All of them, for configurations to be read back."""
