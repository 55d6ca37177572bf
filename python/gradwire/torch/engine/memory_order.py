"""Conversion between logical order and memory order: buckets hold gradients in memory order."""

from collections.abc import Sequence
from typing import Any

import torch
from numpy.typing import NDArray

from gradwire.torch.engine.parameter import ParameterSlot
from gradwire.torch.engine.sharding import laid_out

__all__ = ["BUFFERS", "laid_out", "observe", "strides_of", "to_logical", "to_memory"]

BUFFERS = ("residual", "momentum", "second_moment")
"""Arrays of a parameter's state with a value per entry, in memory order; None without them."""


def to_logical(flat: NDArray[Any], parameter: ParameterSlot) -> torch.Tensor:
    """Return a copy of values in memory order as a contiguous tensor of the parameter's shape.

    The values are float32, or as uint16 the bits of bfloat16, which the tensor then is.
    """
    values = torch.from_numpy(flat)
    if values.dtype == torch.uint16:
        values = values.view(torch.bfloat16)
    shape = parameter.shape
    return values.as_strided(shape, strides_of(parameter)).clone().contiguous()


def to_memory(
    values: torch.Tensor, parameter: ParameterSlot, dtype: torch.dtype = torch.float32
) -> NDArray[Any]:
    """Return values of the parameter's shape in memory order; the inverse of `to_logical`."""
    flat = torch.empty(parameter.numel, dtype=dtype, device="cpu")
    flat.as_strided(parameter.shape, strides_of(parameter)).copy_(values)
    return (flat.view(torch.uint16) if dtype == torch.bfloat16 else flat).numpy()


def observe(parameter: ParameterSlot) -> None:
    """Record the memory order of a parameter once DDP has made its buckets.

    If it has changed, the state's arrays are reordered. The state must not be in use.
    """
    if parameter.share is not None:  # its rows were divided by the order in which they were
        return
    strides = laid_out(parameter.tensor)
    if parameter.strides is not None and not _same(
        parameter.tensor.shape, strides, parameter.strides
    ):
        saved: dict[str, Any] = parameter.state.state_dict()
        held = {
            each: to_logical(saved[each], parameter) for each in BUFFERS if saved[each] is not None
        }
        parameter.strides = strides
        moved = {each: to_memory(values, parameter, values.dtype) for each, values in held.items()}
        parameter.state.load_state_dict(saved | moved)
    parameter.strides = strides


def strides_of(parameter: ParameterSlot) -> tuple[int, ...]:
    """Return the strides of a parameter's gradient in memory order."""
    if parameter.share is not None:
        return parameter.share.strides
    return parameter.strides or laid_out(parameter.tensor)


def _same(shape: Sequence[int], one: Sequence[int], other: Sequence[int]) -> bool:
    """Compare strides, ignoring dimensions of length 1."""
    return all(a == b for length, a, b in zip(shape, one, other, strict=True) if length != 1)
