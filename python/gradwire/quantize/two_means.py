"""Two values per column."""

import dataclasses
import math
from collections.abc import Sequence
from typing import ClassVar, Self

from gradwire import _validate
from gradwire.quantize.base import Quantizer

__all__ = ["TwoMeans"]


@dataclasses.dataclass(frozen=True, repr=False)
class TwoMeans(Quantizer):
    """1 bit: each entry becomes the mean of the entries of the same sign in its column.

    A column is a run of consecutive positions in the flat tensor; for a weight of shape (out, in),
    the weights of one output. Entries >= 0 share one mean and entries < 0 the other, both computed
    in float64 over the entries of the column that are sent. For this split no other two values have
    a smaller squared error. The quantizer is biased; a codec without a memory issues a warning.

    Costs one more read of the values, from the cache for columns of up to 65536 entries. A frame
    has eight bytes per column.

    Parameters
    ----------
    column : int or None
        Positions per column. None derives it from the shape in `gradwire.Codec.for_shape`: the
        product of all dimensions but the first, or all entries of a flat tensor.

    Raises
    ------
    ValueError, TypeError
        A column outside 1 to 2**32 - 1.

    References
    ----------
    Seide, Fu, Droppo, Li, Yu, "1-Bit Stochastic Gradient Descent and its Application to
    Data-Parallel Distributed Training of Speech DNNs", Interspeech 2014.

    Dryden, Jacobs, Moon, Van Essen, "Communication Quantization for Data-parallel Training of Deep
    Neural Networks", MLHPC 2016.
    """

    column: int | None = None
    kind: ClassVar[str] = "two_means"
    summed_as: ClassVar[str | None] = None
    contracts: ClassVar[bool] = True
    needs_memory: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.column is not None:
            column = _validate.integer("column", self.column, low=1, high=_validate.MAX_NUMEL)
            self._set("column", column)

    def for_shape(self, shape: Sequence[int]) -> Self:
        """Return the part with the column for tensors of this shape, if none was given."""
        if self.column is not None:
            return self
        return dataclasses.replace(self, column=max(1, math.prod(shape[1:] or shape)))
