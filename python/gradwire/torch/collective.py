"""Compressed averages of tensors in any loop: `all_reduce`, and its cached `Reducer`."""

import itertools
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, Self, TypeAlias, get_args

import torch
import torch.distributed as dist

from gradwire import _validate
from gradwire._codec import Codec
from gradwire.state import State
from gradwire.torch.engine.bucket_contents import BucketContents
from gradwire.torch.engine.config import as_codec, check_frames
from gradwire.torch.engine.consensus import ControlChannel, Devices, agree, checksum
from gradwire.torch.engine.engine import Engine, left_on_error
from gradwire.torch.engine.parameter import ParameterSlot, set_codec
from gradwire.torch.engine.step import Step
from gradwire.torch.errors import AgreementError, ExchangeError, GradientError, TensorError, fresh
from gradwire.torch.exchange import build
from gradwire.torch.transport import ProcessGroups, RankTopology, Transport

__all__ = ["Reducer", "Work", "all_reduce"]


@dataclass(frozen=True, slots=True)
class Call:
    """One call of all ranks."""

    name: str  # at most 32 ASCII characters
    number: int  # the same on all ranks
    facts: dict[str, Any]  # what has to be the same on all ranks
    on_messages: Callable[[list[str]], None] | None = None  # called in the sending thread
    message: str = ""  # at most 8 ASCII characters for the other ranks


@dataclass(frozen=True, slots=True, eq=False)
class Started:
    """A call in progress: its step, and one future per bucket for the averages.

    The futures are resolved whether or not the call succeeds.
    """

    step: Step
    futures: "list[torch.futures.Future[torch.Tensor]]"

    @property
    def done(self) -> bool:
        """Whether `averages` would return at once."""
        return all(future.done() for future in self.futures)

    def averages(self) -> list[torch.Tensor]:
        """Wait, and return the buffers with the averages in them.

        Raises a GradientError, ExchangeError or AgreementError if the call failed; every state is
        as before then.
        """
        averages = [future.wait() for future in self.futures]
        if self.step.error is not None:
            raise fresh(self.step.error)
        return averages


def connect(transport: Transport, like: Sequence[torch.Tensor]) -> Engine:
    """Connect ranks for calls of `start` with buckets of any codec. A collective.

    Later tensors must be on the devices of the given ones. The transport is left if this fails.
    """
    with left_on_error(transport):
        devices = Devices(like)
        messages = transport.make()
        devices.agree(messages)
        device_backends = transport.device_backends(like)
        devices.warn_of_copies(device_backends)
        agree(messages, "connected", {"carriers of frames": device_backends})
        frames = transport.make(device_backends)
        transport.connect(frames, device_backends, like)
        exchange = build(None, frames, transport.make, device_backends, check_result=False)
        place = RankTopology.alone(messages.rank, messages.size)
        return Engine(exchange, ControlChannel(messages), place, transport)


def start(
    engine: Engine, call: Call, buckets: Sequence[tuple[BucketContents, torch.Tensor]]
) -> Started:
    """Start to exchange flat buffers, after checking that all ranks make the same call.

    Raises an ExchangeError if an earlier call broke the exchange, or it is closed.
    """
    control, pipeline = engine.control, engine.pipeline
    if pipeline.broken is not None:
        raise fresh(pipeline.broken)
    if not engine.alive:
        raise ExchangeError("closed: its channels no longer exist")
    step = Step(call.number, prepare=lambda: _agree(control, call, buckets))
    last = len(buckets) - 1
    futures = [
        pipeline.submit(step, contents, buffer, last=at == last, unused=False)
        for at, (contents, buffer) in enumerate(buckets)
    ]
    return Started(step, futures)


def group_of(process_group: dist.ProcessGroup | None) -> dist.ProcessGroup:
    """Return a process group, by default of all ranks; raise if this rank is not in it."""
    if process_group is None:
        process_group = dist.group.WORLD  # None before init_process_group()
    if not isinstance(process_group, dist.ProcessGroup):
        raise ValueError(
            "group must be a process group that this rank is in, after torch.distributed."
            f"init_process_group(); got {process_group!r}"
        )
    return process_group


def _agree(
    control: ControlChannel, call: Call, buckets: Sequence[tuple[BucketContents, torch.Tensor]]
) -> None:
    """Compare a call with those of the other ranks before anything is exchanged.

    Size limits are computed from sizes that all ranks observed. If the ranks' observations differ,
    as after loading a state, all start again with room for any frame.
    """
    parameters = [slot for contents, _ in buckets for slot in contents.compressed]
    limits = [slot.limit.state() for slot in parameters]
    mine = f"{checksum(sorted(call.facts.items())):08x}{checksum(limits):08x}{call.message}"
    messages = control.compare(call.name, mine)
    if any(message[:8] != mine[:8] for message in messages):
        try:
            with control.act("disagreement") as channel:
                agree(channel, f"called {call.name}", call.facts)
        except ValueError as error:
            raise AgreementError(str(error)) from None
    if any(message[8:16] != mine[8:16] for message in messages):
        for slot in parameters:
            slot.limit.reset()
    if call.on_messages is not None:
        call.on_messages([message[16:] for message in messages])


_CALL = "all_reduce()"
_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
_PATIENCE = timedelta(seconds=5)

Tensors: TypeAlias = torch.Tensor | Sequence[torch.Tensor]
States: TypeAlias = State | Sequence[State]
Op = Literal["mean", "sum"]  # what takes the place of the tensors


class Work:
    """The result of an asynchronous `all_reduce`. Tensors change only in `wait`."""

    def __init__(
        self, started: Started, into: Sequence[Sequence[torch.Tensor]], factor: float
    ) -> None:
        self._started: Started | None = started
        self._into = into  # the tensors of each bucket
        self._factor = factor  # of averages

    def is_completed(self) -> bool:
        """Tell whether `wait` would return at once."""
        return self._started is None or self._started.done

    def wait(self) -> None:
        """Wait for the other ranks, and write the results. A second call has no effect.

        Raises
        ------
        TensorError, AgreementError, ExchangeError
            As `all_reduce`. After an ExchangeError, the `Reducer` is broken.
        """
        started, self._started = self._started, None
        if started is None:
            return
        try:
            buffers = started.averages()
        except GradientError as error:
            raise TensorError(error.count, error.first, error.name, error.rank) from None
        with torch.no_grad():
            for tensors, buffer in zip(self._into, buffers, strict=True):
                if self._factor != 1.0:
                    buffer.mul_(self._factor)
                parts = torch.split(buffer, [tensor.numel() for tensor in tensors])
                for tensor, part in zip(tensors, parts, strict=True):
                    tensor.copy_(part.view(tensor.shape))


class Reducer:
    """Averages tensors over a process group, compressed. Creating one is a collective.

    `gradwire.torch.all_reduce` creates one for each process group, and keeps it as long as the
    group. Create one yourself for another timeout, to close it at a certain point, or to continue
    after an error that broke another one.

    Parameters
    ----------
    process_group : torch.distributed.ProcessGroup, optional
        The ranks that take part, by default all. Bytes go over new groups of these ranks.
    like : torch.Tensor or list of torch.Tensor, optional
        Example tensors on the devices of later ones. Only on these devices can frames go from GPU
        to GPU; all others are exchanged through the host, as by default.
    timeout : datetime.timedelta, optional
        How long to wait for other ranks. Defaults to the timeout of the process group.

    Raises
    ------
    ValueError
        This process is not in the group, or the ranks cannot use the same devices.
    ExchangeError
        The ranks could not be connected.

    Notes
    -----
    Three process groups and two threads, which end with `close`, as a context manager, or when the
    object is collected.
    """

    def __init__(
        self,
        process_group: dist.ProcessGroup | None = None,
        *,
        like: Tensors = (),
        timeout: timedelta | None = None,
    ) -> None:
        groups = ProcessGroups(group_of(process_group), timeout)
        self._engine = connect(groups, [like] if isinstance(like, torch.Tensor) else list(like))
        groups.seal()
        self._numbers = itertools.count()
        self._slots: weakref.WeakKeyDictionary[State, ParameterSlot] = weakref.WeakKeyDictionary()

    @property
    def rank(self) -> int:
        """Place of this process in the group."""
        return self._engine.rank

    @property
    def world_size(self) -> int:
        """Number of ranks of the group."""
        return self._engine.size

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def __repr__(self) -> str:
        broken = ", broken" if self._engine.pipeline.broken is not None else ""
        return f"<gradwire.torch.Reducer: rank {self.rank} of {self.world_size}{broken}>"

    def close(self, timeout: timedelta = _PATIENCE) -> None:
        """End the threads and close the connections. A second call has no effect.

        Waits for the other ranks to do the same, so that none is cut off, but not longer than the
        timeout.
        """
        self._engine.leave(timeout)

    def all_reduce(
        self,
        tensor: Tensors,
        codec: Codec,
        state: States,
        *,
        op: Op = "mean",
        async_op: bool = False,
    ) -> Work:
        """Average tensors over all ranks, as `gradwire.torch.all_reduce`."""
        return self._start(_pairs(tensor, codec, state), codec, op, async_op=async_op)

    def _start(
        self, pairs: list[tuple[torch.Tensor, State]], codec: Codec, op: Op, *, async_op: bool
    ) -> Work:
        factor = _factor(op, codec, self.world_size)
        members: dict[torch.dtype, list[tuple[torch.Tensor, ParameterSlot]]] = {}
        for index, (tensor, state) in enumerate(pairs):
            slot = self._slot(index, tensor, codec.for_shape(tensor.shape), state)
            members.setdefault(tensor.dtype, []).append((tensor, slot))
        buckets = []
        for dtype, bucket in members.items():
            with torch.no_grad():
                buffer = torch.cat([tensor.detach().reshape(-1) for tensor, _ in bucket])
            buckets.append((BucketContents([slot for _, slot in bucket], dtype), buffer))
        call = Call(_CALL, next(self._numbers), _facts(pairs, codec, op))
        into = [[tensor for tensor, _ in bucket] for bucket in members.values()]
        work = Work(start(self._engine, call, buckets), into, factor)
        if not async_op:
            work.wait()
        return work

    def _slot(self, index: int, tensor: torch.Tensor, codec: Codec, state: State) -> ParameterSlot:
        """Return the slot of a state for one call, which holds the only reference to the state.

        Only the observed frame sizes are kept between calls.
        """
        slot = self._slots.get(state)
        if slot is None or slot.numel != tensor.numel():
            slot = ParameterSlot("", torch.empty(tensor.shape, dtype=tensor.dtype, device="meta"))
            self._slots[state] = slot
        set_codec(slot, codec)
        name = f"{index}" if state.name is None else state.name
        return ParameterSlot(name, slot.tensor, slot.codec, state, slot.limit, turn=index)


_REDUCERS: "weakref.WeakKeyDictionary[dist.ProcessGroup, Reducer]" = weakref.WeakKeyDictionary()
_LOCK = threading.Lock()


def all_reduce(
    tensor: Tensors,
    codec: Codec,
    state: States,
    group: dist.ProcessGroup | None = None,
    *,
    op: Op = "mean",
    async_op: bool = False,
) -> Work:
    """Replace tensors by their mean over all ranks, compressed. A collective.

    Each rank encodes its tensor into its state, as `gradwire.torch.encode` does; the tensor becomes
    the mean of all ranks' decoded frames, the same bits on every rank. Entries that are not sent
    stay in the rank's state for later calls. The codec's exchange determines how frames are
    combined.

    Parameters
    ----------
    tensor : torch.Tensor or list of torch.Tensor
        float32, float64, float16 or bfloat16, of any shape and strides, on any device; overwritten.
        A list is exchanged together: one collective for each dtype in it.
    codec : gradwire.Codec
        With options that depend on the shape, as in `gradwire.sparseloco`,
        ``codec.for_shape(tensor.shape)`` is used, with which the state must be created.
    state : gradwire.State or list of gradwire.State
        From ``gradwire.torch.init_state(codec, tensor)``, one for each tensor; updated. Keep it
        for the next call with a tensor of that kind, and save its ``state_dict()`` to resume. With
        stochastic rounding, pass ``stream=rank`` to ``init_state``, for random numbers that differ.
    group : torch.distributed.ProcessGroup, optional
        All ranks by default.
    op : {"mean", "sum"}
        The result: the mean over all ranks, or the sum, which is the mean times their number.
    async_op : bool
        Return at once. Calls are carried out in order.

    Returns
    -------
    Work
        With ``async_op``, an object to `wait` for. The tensor changes only there; it has already
        been read, so it may be overwritten before. Without, it is completed.

    Raises
    ------
    TensorError
        A tensor is NaN or infinite on some rank. All ranks raise it; tensors and states are as
        before on all of them.
    AgreementError
        The ranks called with different tensors, codecs or options. All ranks raise it, and nothing
        changes.
    ExchangeError
        Another rank has stopped, did not call in time, or could not encode. States are as before,
        and this group cannot be used any more: see `Reducer`.
    TypeError, ValueError
        Arguments are invalid on this rank, before the other ranks are contacted.

    Notes
    -----
    The first call with a group creates a `Reducer`, with process groups of its own, which is kept
    until the group is destroyed. Every call begins with a message of 64 bytes, by which the ranks
    check that their calls match. Frames are limited to the largest size that any rank has sent,
    with a margin; entries that do not fit stay in the state. A new or loaded state starts with room
    for any frame.
    """
    pairs = _pairs(tensor, codec, state)  # before the other ranks are met
    over = group_of(group)
    with _LOCK:
        reducer = _REDUCERS.get(over)
        if reducer is None:
            reducer = _REDUCERS[over] = Reducer(over, like=pairs[0][0])
    return reducer._start(pairs, codec, op, async_op=async_op)


def _pairs(tensor: Tensors, codec: Codec, state: States) -> list[tuple[torch.Tensor, State]]:
    codec = as_codec(codec, "all_reduce()")
    check_frames(codec, "all_reduce()")
    tensors: list[Any] = list(tensor) if isinstance(tensor, list | tuple) else [tensor]
    states: list[Any] = list(state) if isinstance(state, list | tuple) else [state]
    if not tensors or not len(tensors) == len(states) == len({id(state) for state in states}):
        raise ValueError(
            "pass tensors with a state of its own for each, got "
            f"{len(tensors)} tensors and {len({id(state) for state in states})} states"
        )
    pairs = list(zip(tensors, states, strict=True))
    for index, pair in enumerate(pairs):
        _check(index, codec, *pair)
    return pairs


def _factor(op: Op, codec: Codec, world_size: int) -> float:
    if _validate.choice("op", op, get_args(Op)) == "mean":
        return 1.0
    if codec.exchange.means_senders:
        raise ValueError(f'{codec.exchange!r} averages over senders, which needs op="mean"')
    return float(world_size)


def _check(index: int, codec: Codec, tensor: torch.Tensor, state: State) -> None:
    if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided or tensor.is_meta:
        raise TypeError(f"tensor {index} must be a dense tensor with values, got {tensor!r}")
    if tensor.dtype not in _DTYPES:
        names = ", ".join(str(dtype).removeprefix("torch.") for dtype in _DTYPES)
        raise TypeError(f"tensor {index} must be one of {names}, got {tensor.dtype}")
    if tensor.requires_grad and tensor.is_leaf and torch.is_grad_enabled():
        raise ValueError(
            f"tensor {index} requires gradients and would be overwritten: pass tensor.detach() or "
            "tensor.grad, or call under torch.no_grad()"
        )
    if not hasattr(state, "state_dict"):
        raise TypeError(
            f"state {index} must be a gradwire.State, from gradwire.torch.init_state(codec, "
            f"tensor), got a {type(state).__name__}"
        )
    if state.numel != tensor.numel():
        raise ValueError(
            f"state {index} is for {state.numel} entries, tensor {index} has {tensor.numel()}"
        )
    shaped = codec.for_shape(tensor.shape)
    if not state.codec._codec.same_kind(shaped._codec):
        like = "codec" if shaped is codec else "codec.for_shape(tensor.shape)"
        raise ValueError(
            f"state {index} belongs to {state.codec!r}, got {shaped!r}: only ratio, k or threshold "
            f"may differ; make one with gradwire.torch.init_state({like}, tensor)"
        )


def _facts(pairs: Sequence[tuple[torch.Tensor, State]], codec: Codec, op: Op) -> dict[str, Any]:
    described = [
        (tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), state.name)
        for tensor, state in pairs
    ]
    facts = {"op": op, "codec": codec.get_config(), "tensors": _short(described)}
    if codec.sparsify.shared:  # positions are drawn from the number of the step
        facts["steps of the states"] = _short([state.step for _, state in pairs])
    return facts


def _short(values: list[Any]) -> Any:
    """Return values, or if they are many, a checksum of them."""
    return values if len(values) <= 8 else (len(values), checksum(values))
