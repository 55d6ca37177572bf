"""Makes the records that are kept of parameters throughout training."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch

from gradwire.torch import backends
from gradwire.torch.engine.low_rank_state import LowRankState
from gradwire.torch.engine.memory_order import laid_out
from gradwire.torch.engine.parameter import ParameterSlot
from gradwire.torch.engine.sharding import Shard, local
from gradwire.torch.engine.size_limit import SizeLimit

if TYPE_CHECKING:
    from gradwire.codec import Codec
    from gradwire.exchange import LowRank
    from gradwire.state import State

__all__ = ["fresh_state", "make", "use"]

_BUCKET = 25 << 20


def make(
    named: Mapping[str, torch.nn.Parameter],
    dense: set[str],
    codec_of: "Callable[[str], Codec | None]",
    rank: int,
    bucket_nbytes: int | None,
    share_of: Callable[[str, torch.Tensor], Shard | None],
) -> list[ParameterSlot]:
    """Return the records of all parameters, in their order.

    Parameters
    ----------
    named : mapping of str to torch.nn.ParameterSlot
    dense : set of str
        Parameters that are always sent dense.
    codec_of : callable
        Returns the codec of a parameter by its name; None to send it dense, too.
    rank : int
        This rank, which selects the random numbers of the states.
    bucket_nbytes : int, optional
        Capacity of the buckets.
    share_of : callable
        Returns the part of a parameter that this rank encodes; None for all of it.
    """
    turns = _turns(named, bucket_nbytes or _BUCKET)
    parameters = []
    for name, tensor in named.items():
        share = share_of(name, tensor)
        parameter = ParameterSlot(name, tensor, turn=turns[name], share=share)
        codec = None if name in dense else codec_of(name)
        if codec is not None and codec.exchange.suits(_in_memory(tensor)):
            use(parameter, codec.for_shape(parameter.shape))
            parameter.state = fresh_state(parameter, rank)
        parameters.append(parameter)
    _set_runs(parameters, bucket_nbytes or _BUCKET)
    return parameters


def fresh_state(parameter: ParameterSlot, rank: int) -> "State | LowRankState":
    """Return a new state. With stochastic rounding, every rank draws different numbers."""
    if parameter.codec.exchange.needs_whole_tensor:
        exchange = cast("LowRank", parameter.codec.exchange)
        shape, keeps = _in_memory(parameter.tensor), parameter.codec.memory.keeps
        return LowRankState(exchange, shape, parameter.name, keeps=keeps)
    init = backends.backend_for(parameter.tensor).init_state
    return init(parameter.codec, parameter.numel, parameter.name, rank)


def _in_memory(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return a tensor's lengths in memory order, in which buckets hold its gradient."""
    strides = laid_out(local(tensor))
    order = sorted(range(tensor.ndim), key=lambda each: -strides[each])
    return tuple(tensor.shape[each] for each in order)


def use(parameter: ParameterSlot, codec: "Codec") -> None:
    """Compress a parameter with a codec from now on, and keep its state."""
    if parameter.codec == codec:
        return
    parameter.codec = codec
    # Without a memory, trimmed entries would be lost; and a frame of all entries cannot be trimmed.
    fixed = not (codec.memory.keeps and codec.sparsify.selects)
    parameter.limit = SizeLimit(codec.max_encoded_len(parameter.numel), fixed=fixed)


def _turns(named: Mapping[str, Any], bucket_nbytes: int) -> dict[str, int]:
    """Return each parameter's turn: its position from the end of the model, in bucket sizes.

    From the end, because the last parameter's gradient is ready first.
    """
    turns, nbytes = {}, 0
    for name, tensor in reversed(list(named.items())):
        turns[name] = nbytes // bucket_nbytes
        nbytes += tensor.numel() * tensor.element_size()
    return turns


def _set_runs(parameters: Sequence[ParameterSlot], bucket_nbytes: int) -> None:
    """Set `ParameterSlot.run`, from the end of the model as `_turns`."""
    compressed = [each for each in parameters if each.state is not None]
    total, before = sum(each.numel for each in compressed), 0
    for each in reversed(compressed):
        each.run = before, min(total, bucket_nbytes // each.tensor.element_size())
        before += each.numel
