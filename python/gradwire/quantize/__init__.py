"""Quantizers: how the values of the selected entries are coded.

The rounding error of every entry stays in the residual, if the codec has one.
"""

from gradwire._part import Part
from gradwire.quantize.codebook import Codebook
from gradwire.quantize.exponent import Exponent
from gradwire.quantize.float8 import Float8
from gradwire.quantize.floats import BFloat16, Float16, Float32
from gradwire.quantize.sign_scale import SignScale
from gradwire.quantize.ternary import Ternary
from gradwire.quantize.two_means import TwoMeans
from gradwire.quantize.uniform import Uniform

__all__ = [
    "QUANTIZERS",
    "BFloat16",
    "Codebook",
    "Exponent",
    "Float8",
    "Float16",
    "Float32",
    "Quantizer",
    "SignScale",
    "Ternary",
    "TwoMeans",
    "Uniform",
]

Quantizer = (
    Float32
    | BFloat16
    | Float16
    | Float8
    | Uniform
    | SignScale
    | TwoMeans
    | Ternary
    | Codebook
    | Exponent
)
"""Any quantizer."""

QUANTIZERS: tuple[type[Part], ...] = (
    Float32,
    BFloat16,
    Float16,
    Float8,
    Uniform,
    SignScale,
    TwoMeans,
    Ternary,
    Codebook,
    Exponent,
)
"""All quantizers, for reading configurations."""
