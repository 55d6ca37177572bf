"""Simulated low-precision arithmetic: floats of any width, sums, and the bits sums need.

`Float` rounds to a format, `chunked_sum` adds up as in narrow accumulators, and `mantissa_bits`,
`variance_retention` and `sum_error` predict the error. Arrays are numpy's; no codec uses this
module.
"""

from gradwire.numerics.accumulation import mantissa_bits, sum_error, variance_retention
from gradwire.numerics.floats import Float, chunked_sum

__all__ = [
    "Float",
    "chunked_sum",
    "mantissa_bits",
    "sum_error",
    "variance_retention",
]
