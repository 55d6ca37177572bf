"""The report of packing: sizes and errors of each tensor."""

import dataclasses
import math
from collections.abc import Iterator, Mapping

from gradwire.report.text import columns, size
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
    #: What holds it: ``"linear"``, ``"embedding"`` and ``"experts"`` read packed bytes,
    #: ``"decoded"`` is a dense parameter with the values of the packed one, which is held as well.
    held: str
    #: What chose its codes: ``"nearest"``, or a solver, after what prepared the weights. ``"nearest
    #: (shared)"``: the calibration has inputs, but the weight is used otherwise as well.
    rounding: str = "nearest"
    #: Root mean square of what the layer's outputs change by, as a share of theirs, for the inputs
    #: of the calibration; None without one.
    output_error: float | None = None
    #: That packing took.
    seconds: float = 0.0
    #: What each number of bits would have cost, where a `Budget` chose: the rise of its loss, or
    #: the squared error times the number of weights.
    costs: Mapping[int, float] | None = None


@dataclasses.dataclass(frozen=True)
class PackReport:
    """The result of `pack`: a row for each packed tensor, and totals. ``print`` shows a table."""

    tensors: tuple[PackedTensor, ...]
    #: Names of the parameters that were left as they are.
    left: tuple[str, ...]
    #: Bytes of those.
    left_nbytes: int

    @property
    def dense_nbytes(self) -> int:
        """Bytes of all parameters before packing."""
        return self.left_nbytes + sum(row.dense_nbytes for row in self.tensors)

    @property
    def nbytes(self) -> int:
        """Bytes of all parameters after packing."""
        return self.left_nbytes + sum(row.nbytes for row in self.tensors)

    @property
    def memory_nbytes(self) -> int:
        """Bytes in memory after packing: `nbytes`, and those of parameters that stay decoded."""
        decoded = (row.dense_nbytes for row in self.tensors if row.held == "decoded")
        return self.nbytes + sum(decoded)

    @property
    def bits_per_weight(self) -> float:
        """Bits per entry of the packed tensors, including steps and bases."""
        numel = sum(math.prod(row.shape) for row in self.tensors)
        return 8 * sum(row.nbytes for row in self.tensors) / max(1, numel)

    def __str__(self) -> str:
        lines = columns(dict(self._columns()), {"name", "held", "rounding"})
        sizes = [(row.name, math.prod(row.shape), row.nbytes, row.error) for row in self.tensors]
        of = len(self.tensors) + len(self.left)
        last = totals(sizes, of, self.dense_nbytes, self.nbytes)
        if decoded := [row.name for row in self.tensors if row.held == "decoded"]:
            last += (
                f"; in memory {self.memory_nbytes / 1e6:.2f} MB, because {decoded[0]!r}"
                f"{f' and {len(decoded) - 1} more' if len(decoded) > 1 else ''} stay decoded there"
            )
        known = [row for row in self.tensors if row.output_error is not None]
        if known:
            mean = sum(row.output_error or 0.0 for row in known) / len(known)
            spent = sum(row.seconds for row in self.tensors)
            last += f"; mean error of outputs {mean:.1%}, in {spent:.1f} s"
        return "\n".join([*lines, last] if self.tensors else [last])

    def _columns(self) -> Iterator[tuple[str, list[str]]]:
        every = self.tensors
        yield "name", [row.name for row in every]
        yield "shape", ["x".join(map(str, row.shape)) for row in every]
        yield "bits", [str(row.bits) for row in every]
        yield "bytes", [size(row.nbytes) for row in every]
        yield "error", [f"{100 * row.error:.2f} %" for row in every]
        errors = [row.output_error for row in every]
        if any(error is not None for error in errors):
            yield "outputs", ["-" if error is None else f"{100 * error:.2f} %" for error in errors]
            yield "s", [f"{row.seconds:.2f}" for row in every]
            yield "rounding", [row.rounding for row in every]
        choices = sorted({bits for row in every for bits in row.costs or ()})
        for bits in choices:
            costs = [None if row.costs is None else row.costs.get(bits) for row in every]
            yield f"at {bits}", ["-" if cost is None else f"{cost:+.2g}" for cost in costs]
        yield "held", [row.held for row in every]
