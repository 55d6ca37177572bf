"""PowerSGD: two low-rank factors are summed on the wire."""

import dataclasses
import math
from collections.abc import Sequence
from typing import ClassVar

from gradwire import _validate
from gradwire.exchange.base import Exchange
from gradwire.memory import Memory, NoMemory, Residual
from gradwire.quantize.base import Quantizer
from gradwire.quantize.floats import Float32
from gradwire.sparsify.base import All, Sparsifier


@dataclasses.dataclass(frozen=True, repr=False)
class LowRank(Exchange):
    """Average a low-rank approximation: PowerSGD.

    A gradient plus residual is a matrix M of n rows, the first dimension, and m columns. One step
    of power iteration, with two all-reduces, replaces the average of M over the ranks by ``P Q^T``,
    with ``rank`` columns in P and Q. The bytes that a rank sends do not grow with the number of
    ranks: a step takes ``(n + m) rank`` float32 numbers in all-reduces. Parameters for which that
    is not less than ``n m``, and those of one dimension, are sent dense.

    The codec has `gradwire.sparsify.All`, values in float32, and `gradwire.memory.Residual` for
    error feedback, or `gradwire.memory.NoMemory`. It works in DDP without a hierarchy, and computes
    on the gradients' device, with torch operations: frames are not involved.

    Parameters
    ----------
    rank : int
        Rank of the approximation, at least 1. The authors use 1 to 4.
    warm_start : bool
        Start from the last step's Q. Otherwise every step draws a new one.

    References
    ----------
    Vogels, Karimireddy, Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression for Distributed
    Optimization", NeurIPS 2019, algorithms 1 and 2.
    """

    rank: int = 2
    warm_start: bool = True
    kind: ClassVar[str] = "low_rank"
    gathers_frames: ClassVar[bool] = False
    divides: ClassVar[bool] = False
    needs_whole_tensor: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self._check("rank", _validate.integer, low=1, high=1024)
        _validate.boolean("warm_start", self.warm_start)

    def check(self, sparsify: Sparsifier, quantize: Quantizer) -> None:
        """Raise a ValueError for a codec that changes the values in any other way."""
        if not isinstance(sparsify, All) or not isinstance(quantize, Float32):
            raise ValueError(
                "LowRank sends the factors of whole matrices in float32: use sparsify="
                f"gradwire.sparsify.All() and quantize=gradwire.quantize.Float32(), got "
                f"{sparsify!r} and {quantize!r}"
            )

    def check_memory(self, memory: Memory) -> None:
        """Refuse memories other than plain error feedback, or none."""
        if memory != Residual() and not isinstance(memory, NoMemory):
            raise ValueError(
                "LowRank keeps what its approximation misses: use gradwire.memory.Residual() or "
                f"gradwire.memory.NoMemory(), got {memory!r}"
            )

    def suits(self, shape: Sequence[int]) -> bool:
        """Tell whether factors are smaller than a tensor of this shape."""
        if len(shape) < 2 or 0 in shape:
            return False
        rows, columns = self.matrix(shape)
        return (rows + columns) * self.rank < rows * columns

    @staticmethod
    def matrix(shape: Sequence[int]) -> tuple[int, int]:
        """Return the rows and columns of a tensor of two dimensions or more, as a matrix."""
        return shape[0], math.prod(shape[1:])
