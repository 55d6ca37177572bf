"""What packing did to each tensor."""

import dataclasses
import math

from gradwire.report.text import size
from gradwire.weights.packed import totals


@dataclasses.dataclass(frozen=True)
class PackedTensor:
    """One packed tensor: a row of a `PackReport`."""

    #: As in ``model.named_parameters()``.
    name: str
    shape: tuple[int, ...]
    #: Of a code, further ones included.
    bits: int
    #: Before and after.
    dense_nbytes: int
    nbytes: int
    #: Root mean square of the difference, as a share of that of the weights.
    error: float
    #: What holds it: ``"linear"`` and ``"embedding"`` read packed bytes, ``"decoded"`` is a dense
    #: parameter with the values of the packed one.
    held: str


@dataclasses.dataclass(frozen=True)
class PackReport:
    """What `pack` did: a row for each packed tensor, and totals. ``print`` shows a table."""

    tensors: tuple[PackedTensor, ...]
    #: Names of the parameters that were left as they are.
    left: tuple[str, ...]
    #: Bytes of those.
    left_nbytes: int

    @property
    def dense_nbytes(self) -> int:
        """Bytes of all parameters before."""
        return self.left_nbytes + sum(each.dense_nbytes for each in self.tensors)

    @property
    def nbytes(self) -> int:
        """Bytes of all parameters after."""
        return self.left_nbytes + sum(each.nbytes for each in self.tensors)

    @property
    def bits_per_weight(self) -> float:
        """Bits of an entry of the packed tensors, steps and bases included."""
        numel = sum(math.prod(each.shape) for each in self.tensors)
        return 8 * sum(each.nbytes for each in self.tensors) / max(1, numel)

    def __str__(self) -> str:
        every = [
            (each.name, "x".join(map(str, each.shape)), each.bits, size(each.nbytes),
             f"{100 * each.error:.2f} %", each.held)
            for each in self.tensors
        ]  # fmt: skip
        titles = ("name", "shape", "bits", "bytes", "error", "held")
        rows = [titles, *(tuple(map(str, row)) for row in every)]
        widths = [max(len(row[i]) for row in rows) for i in range(len(titles))]
        lines = [
            "  ".join(
                cell.ljust(width) if i in (0, 5) else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in rows
        ]
        sizes = [
            (each.name, math.prod(each.shape), each.nbytes, each.error) for each in self.tensors
        ]
        of = len(self.tensors) + len(self.left)
        last = totals(sizes, of, self.dense_nbytes, self.nbytes)
        return "\n".join([*lines, last] if self.tensors else [last])
