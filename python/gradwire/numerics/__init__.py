"""Arithmetic in few bits, simulated: floats of any width, sums in them, and the bits sums need.

`Float` rounds to a format as hardware does. `chunked_sum` and `aligned_dot` add up as narrow
accumulators do, and `mantissa_bits`, `variance_retention` and `sum_error` predict what comes of it.
Arrays are of numpy; nothing here runs in a codec.
"""

from gradwire.numerics.accumulation import mantissa_bits, sum_error, variance_retention
from gradwire.numerics.floats import Float
from gradwire.numerics.sums import aligned_dot, chunked_sum

__all__ = [
    "Float",
    "aligned_dot",
    "chunked_sum",
    "mantissa_bits",
    "sum_error",
    "variance_retention",
]
