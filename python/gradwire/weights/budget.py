"""Divides a budget of bits among tensors."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gradwire._validate import Checked, NotNegative, require
from gradwire.quantize import Affine

_UNITS = 1 << 16
"""In which sizes are told apart, at most: with more, sizes are rounded up to whole ones."""

_GRID = Affine(4, 64)


@dataclasses.dataclass(frozen=True)
class Budget(Checked):
    """An average number of bits per weight, divided among tensors to lower the loss most.

    Use it instead of an `Affine` in the rules of `gradwire.torch.weights.pack`, for all parameters
    that its pattern matches first. Their size, with grids and with tensors that cannot be packed,
    is at most ``bits`` per entry. The choice is optimal (dynamic programming over the bytes), for
    additive costs.

    Parameters
    ----------
    bits : float
        Bits per weight, on average: 4 bits with grids of 64 weights take 4.5.
    choices : sequence of int
        Possible bits of a tensor, each 1 to 8.
    loss : callable, optional
        Returns a number to minimize, such as the loss of the model on some batches. It is called
        once for each tensor and choice, with that tensor alone packed, in eval mode and without
        gradients; the rise of the loss is the cost. This gives the best results. Without it, the
        cost is the relative squared error of the layer's outputs (of weights, without a
        calibration), times the number of weights.
    grid : Affine
        Block and fit; its bits are ignored.

    Raises
    ------
    TypeError, ValueError
        An argument is invalid.
    """

    bits: NotNegative
    choices: tuple[int, ...] = (2, 3, 4, 8)
    loss: Callable[[], Any] | None = None
    grid: Affine = _GRID

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set("choices", tuple(sorted(set(self.choices))))
        require(self.choices, "choices must have at least one number of bits, got none")
        self.grids  # noqa: B018  raises if a choice is not possible

    @property
    def grids(self) -> tuple[Affine, ...]:
        """The possible grids of a tensor, fewest bits first."""
        return tuple(dataclasses.replace(self.grid, bits=bits) for bits in self.choices)


def allocate(
    sizes: Sequence[Sequence[int]], costs: Sequence[Sequence[float]], limit: int
) -> list[int]:
    """Return the index of each tensor's choice: the least total cost within a limit on total size.

    The unit of sizes is the greatest common divisor of the differences to each tensor's smallest
    one; with more than 65 536 units up to the limit, sizes are rounded up to coarser units, and the
    total cost is the least one for those. NaN is a cost above all others. The smallest sizes must
    be within the limit.
    """
    least = [min(choices) for choices in sizes]
    room = limit - sum(least)
    extras = [[size - low for size in choices] for choices, low in zip(sizes, least, strict=True)]
    unit = math.gcd(*(extra for choices in extras for extra in choices)) or 1
    unit = max(unit, -(-room // _UNITS))
    width = min(room, sum(map(max, extras))) // unit + 1
    total = np.zeros(width)  # the least cost of the tensors so far within so many units
    picks = []
    for extra, cost in zip(extras, costs, strict=True):
        best, pick = np.full(width, np.inf), np.full(width, extra.index(0), np.int16)
        for i in sorted(range(len(extra)), key=extra.__getitem__):
            units = -(-extra[i] // unit)
            if units >= width or math.isnan(cost[i]):
                continue
            reached = total[: width - units] + cost[i]
            better = reached < best[units:]
            best[units:][better] = reached[better]
            pick[units:][better] = i
        total = best
        picks.append(pick)
    chosen, at = [], width - 1
    for extra, pick in zip(reversed(extras), reversed(picks), strict=True):
        chosen.append(int(pick[at]))
        at -= -(-extra[chosen[-1]] // unit)
    return chosen[::-1]
