"""The function for tensors of any loop, and the objects that it keeps."""

import threading
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, overload

import torch
import torch.distributed as dist

from gradwire.torch.collective import checks as given
from gradwire.torch.collective.reducer import Reducer
from gradwire.torch.collective.work import Op, Work

if TYPE_CHECKING:
    from gradwire.codec import Codec
    from gradwire.state import State

__all__ = ["all_reduce"]

_REDUCERS: "weakref.WeakKeyDictionary[dist.ProcessGroup, Reducer]" = weakref.WeakKeyDictionary()
_LOCK = threading.Lock()


@overload
def all_reduce(
    tensor: torch.Tensor | Sequence[torch.Tensor],
    codec: "Codec",
    state: "State | Sequence[State]",
    group: dist.ProcessGroup | None = ...,
    *,
    op: Op = ...,
    async_op: Literal[False] = ...,
) -> None: ...


@overload
def all_reduce(
    tensor: torch.Tensor | Sequence[torch.Tensor],
    codec: "Codec",
    state: "State | Sequence[State]",
    group: dist.ProcessGroup | None = ...,
    *,
    op: Op = ...,
    async_op: Literal[True],
) -> Work: ...


@overload
def all_reduce(
    tensor: torch.Tensor | Sequence[torch.Tensor],
    codec: "Codec",
    state: "State | Sequence[State]",
    group: dist.ProcessGroup | None = ...,
    *,
    op: Op = ...,
    async_op: bool,
) -> Work | None: ...


def all_reduce(
    tensor: torch.Tensor | Sequence[torch.Tensor],
    codec: "Codec",
    state: "State | Sequence[State]",
    group: dist.ProcessGroup | None = None,
    *,
    op: Op = "mean",
    async_op: bool = False,
) -> Work | None:
    """Replace tensors by their mean over all ranks, compressed. A collective.

    Each rank encodes its tensor into its state, as `gradwire.torch.encode` does; the tensor becomes
    the mean of what all ranks' frames decode to, the same bits on every rank. What a frame leaves
    out stays in the rank's state, and is sent by later calls. How frames are combined is the
    codec's exchange.

    Parameters
    ----------
    tensor : torch.Tensor or list of torch.Tensor
        float32, float64, float16 or bfloat16, of any shape and strides, on any device; overwritten.
        A list is exchanged together: one collective for each dtype in it.
    codec : gradwire.Codec
        With options that depend on the shape, as of `gradwire.sparseloco`, it is
        ``codec.for_shape(tensor.shape)`` that encodes, and that the state must be made with.
    state : gradwire.State or list of gradwire.State
        From ``gradwire.torch.init_state(codec, tensor)``, one for each tensor; updated. Keep it
        for the next call with a tensor of that kind, and save its ``state_dict()`` to resume. With
        stochastic rounding, pass ``stream=rank`` to ``init_state``, for random numbers that differ.
    group : torch.distributed.ProcessGroup, optional
        All ranks by default.
    op : {"mean", "sum"}
        What the tensor becomes: the mean over all ranks, or their number times that.
    async_op : bool
        Return at once. Calls are carried out in the order in which they were made.

    Returns
    -------
    Work or None
        With ``async_op``, what to `wait` for. The tensor changes only there, and was read already,
        so it may be written to before.

    Raises
    ------
    TensorError
        A tensor is NaN or infinite on some rank. All ranks raise it; tensors and states are as
        before on all of them.
    AgreementError
        The ranks called with other tensors, codecs or options. All ranks raise it, and nothing
        changes.
    ExchangeError
        Another rank has stopped, did not call in time, or could not encode. States are as before,
        and this group can exchange no more: see `Reducer`.
    TypeError, ValueError
        Arguments that are wrong on this rank alone, before the others hear of them.

    Notes
    -----
    The first call with a group makes a `Reducer`, with process groups of its own, which is kept
    until the group is destroyed. Every call begins with a message of 64 bytes, by which the ranks
    find that they call the same. Frames have room for the largest that any rank has sent, with a
    margin; what does not fit stays in the state. A new state, or one that was loaded, first has
    room for any frame.
    """
    given.pairs(tensor, codec, state)  # before the other ranks are met
    found = given.group(group)
    with _LOCK:
        reducer = _REDUCERS.get(found)
        if reducer is None:
            first = tensor if isinstance(tensor, torch.Tensor) else tensor[0]
            reducer = _REDUCERS[found] = Reducer(found, like=first)
    return reducer.all_reduce(tensor, codec, state, op=op, async_op=async_op)
