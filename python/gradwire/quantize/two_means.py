"""Two values a column."""

import dataclasses
import math
from collections.abc import Sequence
from typing import ClassVar, Self

from gradwire import _validate
from gradwire._part import Part

__all__ = ["TwoMeans"]


@dataclasses.dataclass(frozen=True, repr=False)
class TwoMeans(Part):
    """One bit: each entry becomes the mean of its column's entries of its sign.

    A column is a run of positions of the flat tensor: of a weight of shape (out, in), all that goes
    into one output. Entries from zero up have one mean, those below zero the other; both are taken
    over every entry of the column that is sent, in float64. No two other values have less error.
    It is biased: a codec without a memory is warned of.

    Costs one more read of the values, in the cache for columns of up to 65536 entries. A frame has
    eight bytes for each column.

    Parameters
    ----------
    column : int or None
        Positions in a column. None takes it from the tensor: `gradwire.Codec.for_shape` makes it
        the entries of one index of the first dimension; of a flat tensor, all.

    Raises
    ------
    ValueError, TypeError
        A column that is not from 1 to 2**32 - 1.

    References
    ----------
    Seide, Fu, Droppo, Li, Yu, "1-Bit Stochastic Gradient Descent and its Application to
    Data-Parallel Distributed Training of Speech DNNs", Interspeech 2014.

    Dryden, Jacobs, Moon, Van Essen, "Communication Quantization for Data-parallel Training of Deep
    Neural Networks", MLHPC 2016.
    """

    column: int | None = None
    kind: ClassVar[str] = "two_means"

    def __post_init__(self) -> None:
        if self.column is not None:
            column = _validate.integer("column", self.column, low=1, high=_validate.MAX_NUMEL)
            self._set("column", column)

    def for_shape(self, shape: Sequence[int]) -> Self:
        """Return the part with the column of a tensor of this shape, where it is not given."""
        if self.column is not None:
            return self
        return dataclasses.replace(self, column=max(1, math.prod(shape[1:] or shape)))
