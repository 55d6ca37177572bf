"""The source of a DDP model's gradients: its single communication hook, switched on and off."""

import functools
import math
import weakref
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import GradBucket  # it exists, unlisted

from gradwire.torch.engine.backward import BackwardPasses, dense_average
from gradwire.torch.engine.step import Step
from gradwire.torch.errors import ExchangeError, fresh
from gradwire.torch.transport import ProcessGroups

_SWITCH = "_gradwire_switch"
_HOOKED = (
    "the model already has a communication hook, and DDP accepts only one, permanently: wrap "
    "model.module in a new DistributedDataParallel, and leave register_comm_hook() out"
)


class Switch:
    """The hook's state, which DDP keeps: it never unregisters a hook, so this switches it off.

    A deep or pickled copy of a model starts detached: it has no threads or process groups.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group  # averages what is not exchanged
        self.passes: BackwardPasses | None = None  # where buckets go, if a codec is attached
        self.index = math.inf  # of the last bucket
        # The handle, which lives as long as it is attached, whether or not the caller keeps it.
        self.holder: object = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _detached, ()


def _detached() -> None:
    """Return the switch of a copied model: none."""


def gradwire_hook(state: Switch, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average a bucket over all ranks: compressed if attached and not paused, else by all-reduce.

    It only enqueues. Collectives started from callbacks would run in the order in which buckets
    happen to complete, which differs between ranks.
    """
    passes, index, buffer = state.passes, bucket.index(), bucket.buffer()
    if passes is None:
        return dense_average(state.group, buffer)
    # `join` calls the hook for ranks without inputs, outside of a backward pass.
    inside = torch._C._current_graph_task_id() != -1
    if index == 0 or index <= state.index or passes.ended:
        passes.begin(shadow=not inside)
    state.index = index
    if passes.refusal is not None and not inside:
        raise passes.refusal
    future: Any = passes.average(bucket.parameters(), buffer, last=bucket.is_last(), placed=inside)
    if not inside:
        future = future.then(functools.partial(_raise_broken, passes.last))
    elif bucket.is_last():
        ending = passes.ending()
        if ending is not None:
            _raise_after_backward(ending)
    average: torch.futures.Future[torch.Tensor] = future
    return average


def _raise_broken(step: Step | None, future: "torch.futures.Future[torch.Tensor]") -> torch.Tensor:
    """Let `join` end on a rank without inputs. After a GradientError the others may continue."""
    if step is not None and isinstance(step.error, ExchangeError):
        raise fresh(step.error)
    return future.value()


def _raise_after_backward(verdict: Callable[[], BaseException | None]) -> None:
    """Make the current backward pass raise what ``verdict`` returns, after it has completed.

    An exception in the hook or in a bucket's future would abort DDP's own final callback half-way:
    the reducer would carry the bookkeeping of this step into the next one, and the replicas would
    drift apart. So this raises after that callback. Autograd runs callbacks in the order in which
    they were queued. DDP queues its own after the hook of the last bucket has returned, and a
    second model in the same backward pass may queue its own from within a callback; so this
    callback moves itself to the end of the queue twice.
    """
    queue = torch.autograd.Variable._execution_engine.queue_callback

    def end() -> None:
        error = verdict()
        if error is not None:
            raise error

    queue(functools.partial(queue, functools.partial(queue, end)))


class DDPSource:
    """The communication hook of a DDP model; averages other buckets over a group."""

    def __init__(self, model: Any, over: dist.ProcessGroup) -> None:
        self._model: Any = weakref.ref(model)  # the model keeps the switch, not the other way
        self._over = over
        self._switch: Switch | None = None

    def check(self) -> None:
        """Raise a ValueError if the model has a hook already."""
        switch = getattr(self._model(), _SWITCH, None)
        if switch is not None and switch.passes is not None:
            raise ValueError("this model already has an attached codec; detach() its handle first")
        if switch is None and any(hook is not gradwire_hook for hook, _ in _hooks(self._model())):
            raise ValueError(_HOOKED)

    def register(self) -> None:
        """Find the model's switch; register the hook the first time."""
        model = self._model()
        switch: Switch | None = getattr(model, _SWITCH, None)
        if switch is None:
            # A copy of a model lists the hook of the original, but does not have it.
            _hooks(model).clear()
            switch = Switch(self._over)
            try:
                model.register_comm_hook(switch, gradwire_hook)
            except RuntimeError as error:
                raise ValueError(_HOOKED) from error
            setattr(model, _SWITCH, switch)
        self._switch = switch

    def open(self, passes: BackwardPasses, holder: object) -> None:
        """Exchange buckets from now on."""
        switch = self._switch
        assert switch is not None  # after register()
        passes.dense = functools.partial(dense_average, self._over)
        switch.group, switch.passes, switch.holder = self._over, passes, holder
        switch.index = math.inf

    def transport(self, ranks: Any, timeout: timedelta | None) -> ProcessGroups:
        """Return the transport of another process group, which the model must already use."""
        model = self._model()
        over = model.process_group if ranks is None else ranks
        check_ranks(model.process_group, over)
        self._over = over
        return ProcessGroups(over, timeout)

    def close(self) -> None:
        """Average buckets without a codec from now on."""
        assert self._switch is not None
        self._switch.passes = self._switch.holder = None


def _hooks(model: Any) -> list[tuple[Any, Any]]:
    """Return DDP's own list of hooks, each with its state."""
    hooks: list[tuple[Any, Any]] = getattr(model, "_comm_hooks", [])
    return hooks


def check_ranks(whole: dist.ProcessGroup, over: dist.ProcessGroup) -> None:
    """Raise a ValueError for other ranks than those whose replicas must stay equal."""
    expected, actual = (sorted(dist.get_process_group_ranks(group)) for group in (whole, over))
    if expected != actual:
        raise ValueError(
            f"process_group= has ranks {actual}, but the model has ranks {expected}: averaging "
            "over other ranks would let the replicas drift apart; pass this group to "
            "DistributedDataParallel(process_group=...) when you wrap the model"
        )
