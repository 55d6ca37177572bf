"""The inputs of a weight, as rows: inputs of a linear layer, patches of a convolution."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator
from itertools import product

import torch
from torch.nn import functional as F

from gradwire.errors import NonFiniteError

BLOCK = 4096
"""Inputs that are multiplied at once."""

Range = tuple[int, int]


@dataclasses.dataclass(frozen=True)
class Inputs:
    """The inputs by which a weight is multiplied.

    Attributes
    ----------
    values : torch.Tensor
        All entries, in any shape.
    width : int
        Entries of one input.
    samples : int
        Number of inputs.
    groups : int
        Groups of rows of the weight, each with different inputs.
    blocks : callable
        Returns the inputs, in blocks of shape (samples, width) or (samples, groups, width).
    plain : bool
        Whether the inputs are just `values`, as rows of `width`.
    """

    values: torch.Tensor
    width: int
    samples: int
    groups: int
    blocks: Callable[[], Iterable[torch.Tensor]]
    plain: bool = False

    def checked(self, name: str) -> float:
        """Return the largest magnitude, or raise a NonFiniteError that names the weight."""
        low, high = torch.aminmax(self.values.detach())
        peak = float(torch.maximum(-low, high))
        if not math.isfinite(peak):
            (wrong,) = (~self.values.isfinite().flatten()).nonzero(as_tuple=True)
            raise NonFiniteError(len(wrong), int(wrong[0]), f"input of {name}")
        return peak


def rows(x: torch.Tensor) -> Inputs:
    """Return the inputs of a linear layer: rows along the last dimension."""
    width = x.shape[-1]
    samples = x.numel() // max(width, 1)

    def blocks() -> Iterable[torch.Tensor]:
        return torch.split(x.detach().reshape(-1, width), BLOCK)

    return Inputs(x, width, samples, 1, blocks, plain=True)


def patches(
    x: torch.Tensor,
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[Range, ...],
    dilation: tuple[int, ...],
    groups: int,
) -> Inputs:
    """Return the inputs of a convolution, whose patches are rows: of one, two or three dimensions.

    Parameters
    ----------
    x : torch.Tensor
        Of shape (images, channels, ...) or (channels, ...).
    kernel, stride, padding, dilation : tuple of int
        By dimension; the padding before and after, of zeros.
    groups : int
        Of channels.
    """
    dims, x = len(kernel), x.detach()
    if x.dim() == dims + 1:
        x = x[None]
    values = x
    if any(padding[0]) or any(map(any, padding)):
        x = F.pad(x, [n for pair in reversed(padding) for n in pair])
    for dim, (size, step, apart) in enumerate(zip(kernel, stride, dilation, strict=True)):
        x = x.unfold(dim + 2, (size - 1) * apart + 1, step)[..., ::apart]
    channels = x.shape[1] // groups
    # Of each image and position the channels of a group, and of those the kernel.
    x = torch.unflatten(x, 1, (groups, channels)).movedim((1, 2), (dims + 1, dims + 2))
    places = tuple(x.shape[: dims + 1])
    width = channels * math.prod(kernel)

    def blocks() -> Iterator[torch.Tensor]:
        for place in _boxes(places):
            block = x[place].reshape(-1, groups, width)
            yield block[:, 0] if groups == 1 else block

    return Inputs(values, width, math.prod(places), groups, blocks)


def _boxes(shape: tuple[int, ...]) -> Iterator[tuple[slice, ...]]:
    """Cut an array into boxes of at most `BLOCK` entries, or of one of its last rows."""
    inner, at = 1, len(shape)
    while at > 0 and inner * shape[at - 1] <= BLOCK:
        at -= 1
        inner *= shape[at]
    step = BLOCK // max(inner, 1)
    steps = [1] * (at - 1) + [step] * (at > 0) + list(shape[at:])
    ranges = [range(0, size, max(step, 1)) for size, step in zip(shape, steps, strict=True)]
    for starts in product(*ranges):
        yield tuple(slice(i, i + max(step, 1)) for i, step in zip(starts, steps, strict=True))
