"""Cross products of a layer's inputs before and after earlier weights were replaced."""

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from gradwire.torch.weights.inputs import Inputs, Range
from gradwire.torch.weights.replay import Batch, replay
from gradwire.torch.weights.sums import Adder, Layer

_Blocks = list[torch.Tensor]


class CrossProducts:
    """Sums ``Y^T Y`` and ``X^T Y`` over batches.

    X are the original inputs of a layer, Y those with weights replaced.

    Parameters
    ----------
    layer : Layer
        Records of the weight's inputs.
    name : str
        Of the weight.
    """

    def __init__(self, layer: Layer, name: str) -> None:
        self.name = name
        self.after = Layer(layer.rows, layer.width, layer.groups, sums={})
        self._whole = (0, layer.rows)
        self._adder = Adder()
        self._sum: torch.Tensor | None = None
        self._are_paired = True

    @property
    def cross(self) -> NDArray[np.float64] | None:
        """The sum of ``X^T Y``; None if X and Y do not correspond."""
        if self._sum is None or not self._are_paired or not self._sum.isfinite().all():
            return None
        return self._sum.cpu().numpy().reshape(self.after.shape())

    def add(
        self,
        model: nn.Module,
        batch: Batch,
        parameters: Mapping[str, nn.Parameter],
        replaced: Mapping[str, torch.Tensor],
    ) -> None:
        """Run a batch without and with weights replaced."""
        before: list[_Blocks] = []

        def keep(_: str, at: Range, __: int, inputs: Inputs) -> None:
            before.append(_blocks(inputs) if at == self._whole else [])

        def pair(name: str, at: Range, _: int, inputs: Inputs) -> None:
            self.after.add(at, inputs, self._adder.sum(inputs, inputs.checked(name)))
            own = before.pop(0) if before else []
            blocks = _blocks(inputs)
            shapes = [[each.shape for each in some] for some in (own, blocks)]
            self._are_paired &= at == self._whole and shapes[0] == shapes[1]
            if self._are_paired:
                for x, y in zip(own, blocks, strict=True):
                    product = (x.mT @ y).double()
                    self._sum = product if self._sum is None else self._sum.add_(product)

        if self._are_paired:
            replay(model, [batch], parameters, keep, [self.name], {})
        replay(model, [batch], parameters, pair, [self.name], replaced)
        self._are_paired &= not before


def _blocks(inputs: Inputs) -> _Blocks:
    """Return inputs in blocks of shape (groups, samples, width)."""
    dtype = torch.float64 if inputs.values.dtype is torch.float64 else torch.float32
    with torch.no_grad(), torch.autocast(inputs.values.device.type, enabled=False):
        return [
            block.to(dtype, copy=True).reshape(len(block), inputs.groups, -1).transpose(0, 1)
            for block in inputs.blocks()
        ]
