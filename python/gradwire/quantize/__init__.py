"""Quantizers: how the values of the selected entries are coded.

The rounding error of every entry stays in the residual, if the codec has one. Options out of range
raise a ValueError, those of the wrong type a TypeError.
"""

from gradwire._part import own_parts
from gradwire.quantize.base import Quantizer as Quantizer

# One line each, in the order in which they are listed: importing a class registers it.
# isort: off
from gradwire.quantize.floats import Float32 as Float32
from gradwire.quantize.floats import BFloat16 as BFloat16
from gradwire.quantize.floats import Float16 as Float16
from gradwire.quantize.floats import Float8 as Float8
from gradwire.quantize.levels import Uniform as Uniform
from gradwire.quantize.levels import Exponent as Exponent
from gradwire.quantize.levels import Codebook as Codebook
from gradwire.quantize.signs import SignScale as SignScale
from gradwire.quantize.signs import TwoMeans as TwoMeans
from gradwire.quantize.signs import Ternary as Ternary
from gradwire.quantize.levels import Affine as Affine
from gradwire.quantize.floats import Lossless as Lossless
# isort: on

#: the quantizers of this package
QUANTIZERS: tuple[type[Quantizer], ...] = own_parts(Quantizer)  # type: ignore[type-abstract]

__all__ = ["Quantizer", *(part.__name__ for part in QUANTIZERS)]
