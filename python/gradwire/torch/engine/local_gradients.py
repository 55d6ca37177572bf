"""Exchange of local gradients in ``.grad``, as after ``no_sync()``, outside a backward pass."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import torch

from gradwire.torch.engine.consensus import ControlChannel
from gradwire.torch.engine.parameter import BUCKET_NBYTES, ParameterSlot, strides_of
from gradwire.torch.engine.sharding import laid_out, local
from gradwire.torch.transport import Channel

Flat: TypeAlias = tuple[Sequence[torch.Tensor], torch.Tensor]  # parameters, their flat gradients


class FlatGradients:
    """A flat buffer for the gradients of parameters of one dtype on one device.

    Each gradient is in memory order, by its strides, and a complex entry is two real ones, as in
    the buckets of DDP. Of a DTensor it holds this rank's shard.
    """

    def __init__(self, tensors: Sequence[torch.Tensor], strides: Sequence[tuple[int, ...]]) -> None:
        first = tensors[0]
        self.tensors = list(tensors)
        here = list(map(local, tensors))
        values = torch.empty(
            sum(shard.numel() for shard in here), dtype=first.dtype, device=first.device
        )
        parts = torch.split(values, [shard.numel() for shard in here])
        self._parts = [
            part.as_strided(shard.shape, stride, part.storage_offset())
            for part, shard, stride in zip(parts, here, strides, strict=True)
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
        """Copy the buffer, times a factor, to all gradients, in place if they exist."""
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


def exchange_local(
    average: Callable[[Sequence[Flat]], None],
    control: ControlChannel,
    parameters: Iterable[ParameterSlot],
    of: str,
) -> None:
    """Average the gradients that any rank has in ``.grad``. A collective.

    All ranks do it in the step of the same optimizer, else some would have made it without them.
    """
    with control.act(f"step({of})") as channel:
        buckets = _flat_buckets(_used_anywhere(channel, list(parameters)))
    for bucket in buckets:
        bucket.read()
    average([(bucket.tensors, bucket.buffer) for bucket in buckets])
    for bucket in buckets:  # none has changed if that has failed
        bucket.write()


def _used_anywhere(channel: Channel, parameters: Sequence[ParameterSlot]) -> list[ParameterSlot]:
    """Return the parameters that have a gradient on some rank, in their order. A collective.

    Raises a ValueError, on all ranks, if a gradient is sparse on some rank.
    """
    mine = [_kind(slot.tensor.grad) for slot in parameters]
    every = channel.all_gather_object(mine)
    used = []
    for slot, *kinds in zip(parameters, *every, strict=True):
        if "sparse" in kinds:
            raise ValueError(
                f"the gradient of {slot.name!r} is sparse: it can be exchanged only in a backward "
                "pass without no_sync()"
            )
        if any(kinds):
            used.append(slot)
    return used


def _flat_buckets(parameters: Iterable[ParameterSlot]) -> list[FlatGradients]:
    """Return flat buffers for the gradients of these parameters, of one dtype each."""
    by_dtype: dict[torch.dtype, list[ParameterSlot]] = {}
    buckets = []
    for slot in parameters:
        bucket = by_dtype.setdefault(slot.tensor.dtype, [])
        bucket.append(slot)
        if sum(local(member.tensor).nbytes for member in bucket) >= BUCKET_NBYTES:
            buckets.append(by_dtype.pop(slot.tensor.dtype))
    buckets += by_dtype.values()
    return [
        FlatGradients([slot.tensor for slot in bucket], list(map(_strides, bucket)))
        for bucket in buckets
    ]


def _kind(gradient: torch.Tensor | None) -> str:
    if gradient is None:
        return ""
    return "dense" if gradient.layout == torch.strided else "sparse"


def _strides(parameter: ParameterSlot) -> tuple[int, ...]:
    if parameter.share is not None:
        return laid_out(local(parameter.tensor))
    return strides_of(parameter)


def as_gradient(values: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """Return values as a gradient of a tensor: a DTensor if the tensor is one."""
    if local(tensor) is tensor:
        return values
    mesh_tensor: Any = tensor.detach()
    whole = {"shape": mesh_tensor.shape, "stride": mesh_tensor.stride()}
    gradient: torch.Tensor = mesh_tensor.from_local(
        values, mesh_tensor.device_mesh, mesh_tensor.placements, run_check=False, **whole
    )
    return gradient
