"""A model whose parameters, gradients and buffers are parts of three vectors.

An optimizer, an average or a copy is then one operation instead of one for each parameter, which
for small models is most of the time of a step.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

MIN_NUMEL = 1024
"""Parameters with fewer entries are sent dense: the default of `gradwire.torch.ddp.attach`."""


ALIGNED = 16
"""Tensors begin at multiples of so many entries, as torch's own do: sums depend on it."""


@dataclass(frozen=True)
class Piece:
    """Where a parameter lies in the vectors."""

    name: str
    start: int
    stop: int


class Flat:
    """Make a model's tensors views of vectors: compressed parameters first, then the others.

    ``parameters``, ``gradients`` and ``buffers`` are float32 vectors, zero between the tensors;
    backward passes add to the gradients. ``pieces`` are the parameters that are compressed; at
    ``cut`` those begin that are sent dense.
    """

    def __init__(self, model: nn.Module) -> None:
        named = list(model.named_parameters())
        large = [pair for pair in named if pair[1].numel() >= MIN_NUMEL]
        small = [pair for pair in named if pair[1].numel() < MIN_NUMEL]
        tensors = [each for _, each in large + small]
        self.model = model
        self.parameters = _merge(tensors)
        self.gradients = torch.zeros_like(self.parameters)
        for tensor, gradient in zip(tensors, _views(self.gradients, tensors), strict=True):
            tensor.grad = gradient
        self.buffers = _merge([each for each in model.buffers() if each.is_floating_point()])
        starts = _starts(tensors)
        self.cut = starts[len(large)]
        self.numel = sum(each.numel() for each in tensors)
        self.numel_dense = sum(each.numel() for _, each in small)
        self.pieces = [
            Piece(name, start, start + each.numel())
            for start, (name, each) in zip(starts, large, strict=False)
        ]


def _starts(tensors: Sequence[Tensor]) -> list[int]:
    """Return where each tensor begins, and the length of all together."""
    lengths = (-(-each.numel() // ALIGNED) * ALIGNED for each in tensors)
    return list(itertools.accumulate(lengths, initial=0))


def _merge(tensors: Sequence[Tensor]) -> Tensor:
    """Return one vector with the contents of all tensors, which become parts of it."""
    vector = torch.zeros(_starts(tensors)[-1])
    for tensor, part in zip(tensors, _views(vector, tensors), strict=True):
        part.copy_(tensor.detach())
        tensor.data = part
    return vector


def _views(vector: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    return [
        vector[start : start + each.numel()].view(each.shape)
        for start, each in zip(_starts(like), like, strict=False)
    ]
