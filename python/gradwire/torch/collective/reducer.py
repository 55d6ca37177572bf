"""What exchanges tensors of any loop over one process group."""

import itertools
import weakref
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, Self, overload

import torch
import torch.distributed as dist

from gradwire.torch.collective import checks as given
from gradwire.torch.collective.work import Op, Work
from gradwire.torch.engine.consensus import checksum
from gradwire.torch.engine.engine import Call, Engine
from gradwire.torch.engine.layout import Layout
from gradwire.torch.engine.parameter import ParameterSlot, set_codec
from gradwire.torch.transport import ProcessGroups

if TYPE_CHECKING:
    from gradwire.codec import Codec
    from gradwire.state import State

__all__ = ["Reducer"]

_PATIENCE = timedelta(seconds=5)
_CALL = "all_reduce()"


class Reducer:
    """Averages tensors over the ranks of a process group, compressed. Making one is a collective.

    `gradwire.torch.all_reduce` makes one for each process group, and keeps it as long as the group.
    Make one yourself for a timeout of its own, to end it at a certain point, or to go on after an
    error that has broken another one.

    Parameters
    ----------
    process_group : torch.distributed.ProcessGroup, optional
        All ranks by default. Its ranks take part; bytes go over groups that are made for it.
    like : torch.Tensor or list of torch.Tensor, optional
        Tensors on the devices of those to come. Only for these devices can frames go from GPU to
        GPU; all others are exchanged by the host, as by default.
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
        like: torch.Tensor | Sequence[torch.Tensor] = (),
        timeout: timedelta | None = None,
    ) -> None:
        groups = ProcessGroups(given.group(process_group), timeout)
        self._engine = Engine(groups, [like] if isinstance(like, torch.Tensor) else list(like))
        groups.seal()
        self._numbers = itertools.count()
        self._records: weakref.WeakKeyDictionary[State, ParameterSlot] = weakref.WeakKeyDictionary()

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
        broken = ", broken" if self._engine.worker.broken is not None else ""
        return f"<gradwire.torch.Reducer: rank {self.rank} of {self.world_size}{broken}>"

    def close(self, timeout: timedelta = _PATIENCE) -> None:
        """End the threads and close the connections. A second call has no effect.

        Waits for the other ranks to do the same, so that none is cut off, but not longer than the
        timeout.
        """
        self._engine.leave(timeout)

    @overload
    def all_reduce(
        self,
        tensor: torch.Tensor | Sequence[torch.Tensor],
        codec: "Codec",
        state: "State | Sequence[State]",
        *,
        op: Op = ...,
        async_op: Literal[False] = ...,
    ) -> None: ...

    @overload
    def all_reduce(
        self,
        tensor: torch.Tensor | Sequence[torch.Tensor],
        codec: "Codec",
        state: "State | Sequence[State]",
        *,
        op: Op = ...,
        async_op: Literal[True],
    ) -> Work: ...

    @overload
    def all_reduce(
        self,
        tensor: torch.Tensor | Sequence[torch.Tensor],
        codec: "Codec",
        state: "State | Sequence[State]",
        *,
        op: Op = ...,
        async_op: bool,
    ) -> Work | None: ...

    def all_reduce(
        self,
        tensor: torch.Tensor | Sequence[torch.Tensor],
        codec: "Codec",
        state: "State | Sequence[State]",
        *,
        op: Op = "mean",
        async_op: bool = False,
    ) -> Work | None:
        """Average tensors over all ranks, as `gradwire.torch.all_reduce`."""
        tensors, states = given.pairs(tensor, codec, state)
        factor = given.factor(op, codec, self.world_size)
        records = [
            self._record(each, codec.for_shape(each.shape), one)
            for each, one in zip(tensors, states, strict=True)
        ]
        buckets, into = [], []
        for dtype in dict.fromkeys(each.dtype for each in tensors):
            members = [index for index, each in enumerate(tensors) if each.dtype == dtype]
            layout = Layout(
                [_placed(records[index], index, states[index]) for index in members], dtype
            )
            into.append([tensors[index] for index in members])
            with torch.no_grad():
                buffer = torch.cat([each.detach().reshape(-1) for each in into[-1]])
            buckets.append((layout, buffer))
        call = Call(_CALL, next(self._numbers), _facts(tensors, codec, states, op))
        work = Work(self._engine.start(call, buckets), into, factor)
        if async_op:
            return work
        work.wait()
        return None

    def _record(self, tensor: torch.Tensor, codec: "Codec", state: "State") -> ParameterSlot:
        """Return the record of a state, which keeps what sizes the ranks have seen."""
        record = self._records.get(state)
        if record is None or record.numel != tensor.numel():
            record = ParameterSlot("", torch.empty(tensor.shape, dtype=tensor.dtype, device="meta"))
            self._records[state] = record
        set_codec(record, codec)
        return record


def _placed(record: ParameterSlot, index: int, state: "State") -> ParameterSlot:
    """Return the record of a state for one call. It alone refers to the state."""
    name = f"{index}" if state.name is None else state.name
    return ParameterSlot(name, record.tensor, record.codec, state, record.limit, turn=index)


def _facts(
    tensors: Sequence[torch.Tensor], codec: "Codec", states: "Sequence[State]", op: Op
) -> dict[str, Any]:
    """Return what has to be the same on all ranks."""
    described = [
        (tuple(each.shape), str(each.dtype).removeprefix("torch."), state.name)
        for each, state in zip(tensors, states, strict=True)
    ]
    facts = {"op": op, "codec": codec.get_config(), "tensors": _short(described)}
    if codec.sparsify.shared:  # positions are drawn from the number of the step
        facts["steps of the states"] = _short([each.step for each in states])
    return facts


def _short(values: list[Any]) -> Any:
    """Return values, or if they are many, what tells whether they are the same."""
    return values if len(values) <= 8 else (len(values), checksum(values))
