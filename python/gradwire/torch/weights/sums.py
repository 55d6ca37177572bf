"""Sums over a layer's inputs: products of float32 in blocks, added in float64."""

import dataclasses
import math
import weakref
from typing import Any

import numpy as np
import torch

from gradwire.torch.weights.inputs import Inputs, Range
from gradwire.weights import Gram

_SAFE = 1e15  # magnitudes whose squares float32 holds, and those of their inverses


@dataclasses.dataclass
class Sum:
    """Second moments and sums of inputs: float64, (groups, n, n) and (groups, n)."""

    matrix: torch.Tensor
    total: torch.Tensor
    count: int = 0

    @classmethod
    def zero(cls, inputs: Inputs) -> "Sum":
        """Return a sum of no inputs, on their device if it supports float64."""
        device = inputs.values.device
        size = (inputs.groups, inputs.width)
        where = torch.device("cpu") if device.type == "mps" else device
        with torch.inference_mode(False):  # others cannot be added to outside of it
            matrix = torch.zeros(*size, inputs.width, dtype=torch.float64, device=where)
            return cls(matrix, torch.zeros(size, dtype=torch.float64, device=where))

    def __iadd__(self, other: "Sum") -> "Sum":
        """Add another sum, which may be float32."""
        self.matrix.add_(other.matrix.to(self.matrix.device))
        self.total.add_(other.total.to(self.total.device))
        self.count += other.count
        return self


def nbytes(width: int, groups: int) -> int:
    """Return the bytes of a sum."""
    return 8 * groups * width * (width + 1)


class Adder:
    """Sums inputs. Inputs shared by successive weights are multiplied once."""

    def __init__(self) -> None:
        self._last: tuple[weakref.ref[torch.Tensor], int, Sum] | None = None

    def sum(self, inputs: Inputs, peak: float) -> Sum:
        """Return the sum over inputs, given their largest magnitude."""
        x = inputs.values
        if self._last is not None:
            known, version, added = self._last
            if inputs.plain and known() is x and x._version == version:
                return added
        self._last = None
        kind, off = x.device.type, torch.autocast(x.device.type, enabled=False)
        narrow = x.dtype is not torch.float64 and (peak == 0 or 1 / _SAFE < peak < _SAFE)
        dtype = torch.float32 if narrow or kind == "mps" else torch.float64
        with torch.inference_mode(False), torch.no_grad(), off:
            added = Sum.zero(inputs)
            for block in inputs.blocks():
                values = block.to(dtype).reshape(len(block), inputs.groups, -1).transpose(0, 1)
                added += Sum(values.mT @ values, values.sum(1), len(block))
        if inputs.plain and not x.is_inference():
            self._last = (weakref.ref(x), x._version, added)
        return added

    def forget(self) -> None:
        """Free the cached products of the last inputs."""
        self._last = None


@dataclasses.dataclass
class Layer:
    """The recorded inputs of a weight, by the rows of the weight that they multiply.

    Attributes
    ----------
    rows, width : int
        Of the weight.
    counts : dict
        Inputs in the batches that were kept.
    sums : dict or None
        None if sums must be computed by a replay.
    """

    rows: int
    width: int
    groups: int
    counts: dict[Range, int] = dataclasses.field(default_factory=dict)
    sums: dict[Range, Sum] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of its sums."""
        return nbytes(self.width, self.groups) * len(self.sums or self.counts)

    def add(self, at: Range, inputs: Inputs, added: Sum) -> None:
        """Add a sum of the inputs of some rows."""
        assert self.sums is not None
        if at not in self.sums:
            self.sums[at] = Sum.zero(inputs)
        self.sums[at] += added

    def known(self) -> dict[Range, int]:
        """Return the number of inputs of each range of rows."""
        return self.counts if self.sums is None else {at: s.count for at, s in self.sums.items()}

    def shape(self) -> tuple[int, ...]:
        """Return the shape of the Gram matrix."""
        groups = max(self.groups, len(self._parts()))
        square = (self.width, self.width)
        return square if groups == 1 else (groups, *square)

    def count(self) -> int:
        """Return the number of inputs; if rows differ, the largest."""
        known = self.known()
        return max(sum(known[at] for at in part) for part in self._parts())

    def _parts(self) -> list[list[Range]]:
        """Return, for each of equal groups of rows, the range that contains it; else one group."""
        ranges = list(self.known())
        size = math.gcd(self.rows, *(bound for each in ranges for bound in each))
        if not ranges or size != min(stop - start for start, stop in ranges):
            return [ranges]
        return [
            [each for each in ranges if each[0] <= at < each[1]] for at in range(0, self.rows, size)
        ]

    def gram(self) -> Gram:
        """Return the Gram matrix, on the host, from the sums in memory."""
        sums = self.sums
        assert sums is not None
        matrix, count = np.zeros(self.shape()), self.count()
        mean = np.zeros(matrix.shape[:-1])
        parts = self._parts()
        for i, part in enumerate(parts):
            at: Any = i if len(parts) > 1 else ...
            for own in (sums[each] for each in part):
                even = own.matrix.add(own.matrix.mT).mul_(0.5)  # products may differ in a last bit
                matrix[at] += even.cpu().numpy().reshape(matrix[at].shape)
                mean[at] += own.total.cpu().numpy().reshape(mean[at].shape) / count
        return Gram(matrix, count, mean)


def check(name: str, given: Gram, shape: tuple[int, ...] | None) -> None:
    """Raise a ValueError if a Gram matrix does not fit a weight."""
    if shape is None:
        raise ValueError(f"there is a Gram matrix of {name!r}, and no such weight in the model")
    widths = {torch.Size(shape[1:]).numel(), shape[-1]}
    rows = torch.Size(shape).numel() // max(given.width, 1)
    if given.width not in widths or rows % given.groups:
        raise ValueError(
            f"the Gram matrix of {name!r} has shape {given.matrix.shape}, which does not fit a "
            f"weight of shape {shape}"
        )
