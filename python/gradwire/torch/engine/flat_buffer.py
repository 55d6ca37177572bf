"""Copies gradients between ``.grad`` and a flat buffer that an exchange averages."""

from collections.abc import Sequence

import torch

from gradwire.torch.engine.sharding import as_gradient, local

__all__ = ["FlatGradients"]


class FlatGradients:
    """A flat buffer for the gradients of parameters of one dtype on one device.

    Each gradient is in memory order, and complex entries are two, as in the buckets of DDP.

    Attributes
    ----------
    tensors : list of torch.Tensor
        The parameters; of a DTensor, what this rank has of it.
    buffer : torch.Tensor
        shape (entries,).

    Parameters
    ----------
    tensors
        The attribute.
    strides : sequence of tuple of int
        Strides of the gradient of each of them in memory order.
    """

    def __init__(self, tensors: Sequence[torch.Tensor], strides: Sequence[tuple[int, ...]]) -> None:
        first = tensors[0]
        self.tensors = list(tensors)
        here = list(map(local, tensors))
        values = torch.empty(
            sum(each.numel() for each in here), dtype=first.dtype, device=first.device
        )
        parts = torch.split(values, [each.numel() for each in here])
        self._parts = [
            part.as_strided(each.shape, stride, part.storage_offset())
            for part, each, stride in zip(parts, here, strides, strict=True)
        ]
        self.buffer = torch.view_as_real(values).flatten() if first.is_complex() else values

    @torch.no_grad()
    def read(self) -> None:
        """Copy all gradients to the buffer: zeros for a parameter without one."""
        for tensor, part in zip(self.tensors, self._parts, strict=True):
            gradient = tensor.grad
            if gradient is None:
                part.zero_()
            else:
                part.copy_(gradient.to_dense() if gradient.is_sparse else local(gradient))

    @torch.no_grad()
    def write(self, factor: float = 1.0) -> None:
        """Copy the buffer, times a factor, to all gradients, in place where there is one."""
        for tensor, part in zip(self.tensors, self._parts, strict=True):
            gradient = tensor.grad
            if gradient is None:
                gradient = tensor.grad = as_gradient(part.clone(), tensor)
            elif gradient.is_sparse:
                gradient.zero_()
                gradient.add_(part.to_sparse(gradient.sparse_dim()))
            else:
                local(gradient).copy_(part)
            if factor != 1.0:
                gradient.mul_(factor)
