"""Exchanges gradients that are still in ``.grad``, outside of a backward pass."""

from collections.abc import Iterable, Iterator, Sequence

import torch

from gradwire.torch.engine.backward import BackwardPasses
from gradwire.torch.engine.flat_buffer import FlatGradients
from gradwire.torch.engine.memory_order import strides_of
from gradwire.torch.engine.parameter import ParameterSlot
from gradwire.torch.engine.sharding import laid_out, local
from gradwire.torch.transport import Channel

__all__ = ["exchange_held", "used_anywhere"]

_BUCKET = 25 << 20
"""Bytes of a bucket: encoding one overlaps the exchange of the previous one."""


def used_anywhere(channel: Channel, parameters: Sequence[ParameterSlot]) -> list[ParameterSlot]:
    """Return the parameters that have a gradient on some rank.

    Parameters
    ----------
    channel : Channel
        A channel in which nothing else is in progress.
    parameters : sequence of ParameterSlot
        The parameters of the model, in the same order on all ranks.

    Raises
    ------
    ValueError
        A gradient is sparse on some rank.
    """
    mine = [_kind(each.tensor.grad) for each in parameters]
    every = channel.all_gather_object(mine)
    used = []
    for each, *kinds in zip(parameters, *every, strict=True):
        if "sparse" in kinds:
            raise ValueError(
                f"the gradient of {each.name!r} is sparse: it can be exchanged only in a backward "
                "pass without no_sync()"
            )
        if any(kinds):
            used.append(each)
    return used


def exchange_held(passes: BackwardPasses, parameters: Sequence[ParameterSlot]) -> None:
    """Replace the ``.grad`` of these parameters by what their exchange brings, on all ranks.

    Raises
    ------
    GradientError, ExchangeError, UpdateError
        As in a backward pass. No ``.grad`` has changed then.
    """
    buckets = [
        FlatGradients([each.tensor for each in members], list(map(_strides, members)))
        for members in _buckets(parameters)
    ]
    for each in buckets:
        each.read()
    passes.exchange([(each.tensors, each.buffer) for each in buckets])
    for each in buckets:
        each.write()


def _kind(gradient: torch.Tensor | None) -> str:
    if gradient is None:
        return ""
    return "dense" if gradient.layout == torch.strided else "sparse"


def _strides(parameter: ParameterSlot) -> tuple[int, ...]:
    """Return the strides of what this rank has of the gradient."""
    if parameter.share is not None:
        return laid_out(local(parameter.tensor))
    return strides_of(parameter)


def _buckets(parameters: Iterable[ParameterSlot]) -> Iterator[list[ParameterSlot]]:
    """Divide parameters into buckets of one dtype each."""
    by_dtype: dict[torch.dtype, list[ParameterSlot]] = {}
    for each in parameters:
        bucket = by_dtype.setdefault(each.tensor.dtype, [])
        bucket.append(each)
        if sum(local(one.tensor).nbytes for one in bucket) >= _BUCKET:
            yield by_dtype.pop(each.tensor.dtype)
    yield from by_dtype.values()
