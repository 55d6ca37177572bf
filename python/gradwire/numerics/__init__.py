"""Simulated low-precision arithmetic: floats of any width, sums, and the bits sums need.

`Float` rounds to a format as hardware does. `chunked_sum` and `aligned_dot` sum like narrow
accumulators, and `mantissa_bits`, `variance_retention` and `sum_error` predict the error. Arrays
are numpy's; no codec uses this module.
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
