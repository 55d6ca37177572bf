"""The slopes of element-wise activations: all that their backward reads of what they save.

Backward multiplies by the derivative f'(x). So f'(x) is coded, rounded without bias, and what is
unpacked is a value with that derivative. ReLU has two slopes, so a bit per entry is exact.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from gradwire.torch.activations.forms import Bits, Encoder, Form, looked_up

_POINTS = 4096
_GAP = 32
"""Slopes further apart than a part of their range are not bridged: those of ELU(0.3) are 0 to 0.3,
and 1. No value has one between, so a bit tells the sides apart."""

_STEEP = 1e6
"""Slopes that differ by more have no bounds, as those of CELU(-0.5), and are not coded."""


class Slope(NamedTuple):
    """The derivative of an activation, as torch computes it of the tensor that it saves."""

    #: Called with a gradient, the tensor and `arguments`, as aten's.
    backward: Callable[..., torch.Tensor]
    arguments: tuple[Any, ...] = ()
    #: Between which the tensor lies, if it is a result.
    domain: tuple[float, float] = (-float("inf"), float("inf"))

    def of(self, x: torch.Tensor) -> torch.Tensor:
        """Return the slopes at values, in their dtype."""
        return self.backward(torch.ones_like(x), x, *self.arguments)

    def form(self, flat: torch.Tensor, encoder: Encoder) -> Form | str:
        """Return the packed form of values, or the reason why there is none."""
        table, slopes = _table(self, flat.dtype), self.of(flat)
        above = None
        if table.high - table.low > _STEEP:
            return "slopes without bounds"
        if table.split is not None:
            above = Bits(slopes > table.split, (float(table.values[0]), table.above), flat.dtype)
            if len(table.values) == 1:
                return above
            slopes = slopes.clamp_max(table.high)
        codes = encoder.encode(slopes.to(torch.float32))
        return codes if isinstance(codes, str) else Slopes(codes, above, table)


class _Table(NamedTuple):
    """Values with given slopes, at equal distances from `low` to `high`."""

    values: torch.Tensor
    low: float
    high: float
    #: Slopes above it are one slope, that of the value `above`.
    split: float | None
    above: float


class Slopes:
    """Codes of slopes, and a bit per entry where they have a gap."""

    __slots__ = ("__weakref__", "_above", "_codes", "_table")

    def __init__(self, codes: Form, above: Bits | None, table: _Table) -> None:
        self._codes, self._above, self._table = codes, above, table

    @property
    def nbytes(self) -> int:
        """Bytes in packed form."""
        return self._codes.nbytes + (0 if self._above is None else self._above.nbytes)

    def values(self) -> torch.Tensor:
        """Return values with the slopes, one-dimensional."""
        values, low, high = self._table[:3]
        place = self._codes.values().sub_(low).mul_((len(values) - 1) / (high - low)).add_(0.5)
        found = looked_up(values, place.clamp_(0, len(values) - 1).to(torch.int32))
        if self._above is not None:
            found.masked_fill_(self._above.chosen(), self._table.above)
        return found


@functools.lru_cache
def _table(slope: Slope, dtype: torch.dtype) -> _Table:
    """Return values for all slopes, which are found by trying."""
    x = torch.unique(_tried(slope).to(dtype))
    slopes = slope.of(x).to(torch.float64)
    x, slopes = x[slopes.isfinite()], slopes[slopes.isfinite()]
    ends = {float(slopes[at]): x[at] for at in (0, -1)}  # of saturation
    slopes, order = slopes.sort(stable=True)
    x, split, above = x[order], None, float(x[order[-1]])
    if len(slopes) > 1:
        gap, at = slopes.diff().max(0)
        if gap * _GAP > slopes[-1] - slopes[0]:
            split = float(slopes[at] + gap / 2)
            x, slopes = x[: at + 1], slopes[: at + 1]
    low, high = float(slopes[0]), float(slopes[-1])
    if low == high:
        return _Table(x[:1], low, high, high if split is None else split, above)
    wanted = torch.linspace(low, high, _POINTS, dtype=torch.float64)
    after = torch.searchsorted(slopes, wanted).clamp_(1, len(slopes) - 1)
    nearer = wanted - slopes[after - 1] < slopes[after] - wanted
    values = x[after - nearer.to(torch.int64)]
    for end, value in ends.items():
        if low <= end <= high:
            values[round((end - low) / (high - low) * (_POINTS - 1))] = value
    return _Table(values, low, high, split, above)


def _tried(slope: Slope) -> torch.Tensor:
    """Return values of all sizes, and those at, beside and between the bounds of the activation."""
    bounds = np.array([each for each in slope.arguments if isinstance(each, float)], np.float64)
    beside = [bounds * (1 + way) for way in (-1e-2, -1e-7, 0.0, 1e-7, 1e-2)]
    between = np.add.outer(bounds, bounds).ravel() / 2
    sizes = np.geomspace(1e-6, 1e4, 1 << 15)
    every = np.concatenate([-sizes, [0.0], sizes, *beside, between])
    return torch.from_numpy(every.clip(*slope.domain)).clamp_(-6e4, 6e4)
