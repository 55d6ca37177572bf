"""The shared parameters of a fragment, beside a rank's own."""

from collections.abc import Sequence

import torch

from gradwire.torch.diloco.outer import Outer
from gradwire.torch.engine.layout import Layout
from gradwire.torch.engine.parameter import ParameterSlot

__all__ = ["Part"]


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
    own_dtype : torch.dtype
        Of a rank's own parameters, flat.
    """

    def __init__(self, layout: Layout, *, momentum: bool) -> None:
        self.layout = layout
        self.records: Sequence[ParameterSlot] = [
            piece.parameter
            for piece in sorted((*layout.pieces, *layout.dense), key=lambda each: each.start)
        ]
        own = self.own()
        self.own_dtype = own.dtype
        self.shared = own.to(torch.promote_types(torch.float32, own.dtype))
        self.velocity = torch.zeros_like(self.shared) if momentum else None

    @torch.no_grad()
    def own(self) -> torch.Tensor:
        """Return a copy of this rank's own parameters, flat and in their dtype."""
        return torch.cat([each.tensor.detach().reshape(-1) for each in self.records])

    def dtype_of(self, kind: str) -> torch.dtype:
        """Return the dtype of what a checkpoint has of these parameters.

        Parameters
        ----------
        kind : {"shared", "velocity", "pending", "sent"}
        """
        if kind == "pending":
            return torch.float32
        return self.own_dtype if kind == "sent" else self.shared.dtype

    def change(self, own: torch.Tensor) -> torch.Tensor:
        """Return the pseudo-gradient: by what this rank has moved the parameters, negated."""
        return (self.shared - own).float()

    @torch.no_grad()
    def step(self, outer: Outer, mean: torch.Tensor, sent: torch.Tensor | None) -> None:
        """Make an outer step, and bring this rank's own parameters to where it goes on."""
        outer.step(self.shared, self.velocity, mean)
        before = [None] * len(self.records) if sent is None else self._values(sent)
        for record, values, each in zip(
            self.records, self._values(self.shared), before, strict=True
        ):
            outer.place(record.tensor, values, each)

    @torch.no_grad()
    def write(self) -> None:
        """Set this rank's own parameters to the shared ones."""
        for record, values in self.split(self.shared):
            record.tensor.copy_(values)

    def split(self, flat: torch.Tensor) -> list[tuple[ParameterSlot, torch.Tensor]]:
        """Return the part of each parameter in a flat tensor, in its shape."""
        return list(zip(self.records, self._values(flat), strict=True))

    def _values(self, flat: torch.Tensor) -> list[torch.Tensor]:
        parts = torch.split(flat, [each.numel for each in self.records])
        return [
            part.view(record.tensor.shape) for record, part in zip(self.records, parts, strict=True)
        ]
