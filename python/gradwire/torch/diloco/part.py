"""The shared parameters of a fragment, and the outer step on them."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from gradwire.torch.reducer.layout import Layout
from gradwire.torch.reducer.record import Parameter

__all__ = ["Outer", "Part"]


@dataclass(frozen=True, slots=True)
class Outer:
    """The outer optimizer: SGD with momentum on averaged pseudo-gradients.

    Every operation is rounded by itself, as IEEE 754 says: sites with other processors get the same
    bits.

    Attributes
    ----------
    lr, momentum : float
    nesterov : bool
    mixing : float
        Share of a rank's own parameters that remains when a fragment is applied.
    """

    lr: float
    momentum: float
    nesterov: bool
    mixing: float

    def step(self, shared: torch.Tensor, velocity: torch.Tensor | None, mean: torch.Tensor) -> None:
        """Move shared parameters against the mean of what the ranks have moved them by."""
        mean = mean.to(shared.dtype)
        if velocity is not None:
            velocity.mul_(self.momentum).add_(mean)
            mean = mean + velocity * self.momentum if self.nesterov else velocity
        shared.sub_(mean * self.lr)


class Part:
    """The parameters of a fragment on one device.

    Attributes
    ----------
    layout : Layout
        Of the pseudo-gradient.
    shared : torch.Tensor
        The shared parameters, flat: float32, or float64 if a parameter is.
    velocity : torch.Tensor or None
        The outer momentum, alike.
    """

    def __init__(self, layout: Layout, *, momentum: bool) -> None:
        self.layout = layout
        self.records: Sequence[Parameter] = [
            piece.parameter
            for piece in sorted((*layout.pieces, *layout.dense), key=lambda each: each.start)
        ]
        dtype = torch.float32
        for each in self.records:
            dtype = torch.promote_types(dtype, each.tensor.dtype)
        self.shared = self._flat().to(dtype)
        self.velocity = torch.zeros_like(self.shared) if momentum else None

    def change(self) -> torch.Tensor:
        """Return the pseudo-gradient: by what this rank has moved the parameters, negated."""
        return (self.shared - self._flat()).float()

    def step(self, outer: Outer, mean: torch.Tensor) -> None:
        """Make an outer step, and bring the model's parameters to the result."""
        outer.step(self.shared, self.velocity, mean)
        self.write(outer.mixing)

    @torch.no_grad()
    def write(self, mixing: float = 0.0) -> None:
        """Set the model's parameters, of which a share remains as it is."""
        for record, values in self.split(self.shared):
            if mixing == 0.0:
                record.tensor.copy_(values)
            else:
                record.tensor.lerp_(values.to(record.tensor.dtype), 1.0 - mixing)

    def split(self, flat: torch.Tensor) -> list[tuple[Parameter, torch.Tensor]]:
        """Return the part of each parameter in a flat tensor, in its shape."""
        parts = torch.split(flat, [each.numel for each in self.records])
        return [
            (record, part.view(record.tensor.shape))
            for record, part in zip(self.records, parts, strict=True)
        ]

    @torch.no_grad()
    def _flat(self) -> torch.Tensor:
        return torch.cat([each.tensor.detach().reshape(-1) for each in self.records])
