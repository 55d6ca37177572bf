"""A training step without any exchange, measured on the model itself."""

import contextlib
import operator
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from gradwire import _validate
from gradwire.cost import Workload

_FIRST, _CAP = 1 << 20, 25 << 20
"""Bytes of DDP's first bucket and of the others, unless the user has given a size."""


def measure_workload(
    model: torch.nn.Module,
    step: Callable[[], object],
    *,
    optimizer: float = 0.0,
    steps: int = 10,
    shared: bool | None = None,
    progress: Callable[[str, float], object] | None = None,
) -> Workload:
    """Measure the backward pass of a model, and when each of its buckets is ready.

    If the model is a DistributedDataParallel, all ranks must call it, and steps run in
    ``model.no_sync()``: nothing is exchanged, whatever the model's hook. Any other model is
    measured in this process alone. Values of ``grad`` are restored afterwards.

    Parameters
    ----------
    model : torch.nn.Module
        With parameters on one device.
    step : callable
        A forward and a backward pass, as ``lambda: loss(model(x), y).backward()``. Without the
        optimizer: gradients are those of this rank alone, and models would drift apart.
    optimizer : float
        Seconds of the rest of a step.
    steps : int
        Number of steps, after one warm-up step; the median is used, since training runs at the
        usual speed, not at the best. Each takes as long as on its slowest rank, for which the
        others wait.
    shared : bool, optional
        Encodes take processor time from the backward pass. By default, if the model is on the CPU.
    progress : callable, optional
        Called as ``progress(what, done)`` with the number of the step and the share of all steps
        that is done, from 0 to 1, on the ranks that are given one. It must not raise: other ranks
        would wait.

    Returns
    -------
    Workload
        The same on all ranks, with the buckets that DDP makes after its first step, by default or
        with the options of this model, from the order in which gradients are ready.

    Raises
    ------
    TypeError
        The model is no `torch.nn.Module`.
    ValueError
        The model has no trainable parameter, or a step had no forward pass of it, or no gradients.
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    steps = _validate.integer("steps", steps, low=1)
    optimizer = _validate.positive("optimizer", optimizer)
    tell = _validate.progress(progress)
    parameters = [each for each in model.parameters() if each.requires_grad]
    if not parameters:
        raise ValueError("model has no parameter with requires_grad: no gradient to exchange")
    watch = _Watch(model, parameters)
    kept = [each.grad for each in parameters]
    found = []
    try:
        for at in range(1 + steps):
            tell(f"step {at + 1} of {1 + steps}", at / (1 + steps))
            found.append(watch.time(step))
        tell("done", 1.0)
    finally:
        watch.close()
        for each, grad in zip(parameters, kept, strict=True):
            each.grad = grad
    device = parameters[0].device
    told = torch.tensor(found[1:], dtype=torch.float64, device=device)
    if isinstance(model, DistributedDataParallel):
        dist.all_reduce(told, op=dist.ReduceOp.MAX, group=model.process_group)
    seconds, *moments = sorted(told.tolist(), key=operator.itemgetter(0))[steps // 2]
    order = sorted(range(len(moments)), key=moments.__getitem__)
    made = _buckets(model, [(moments[at], parameters[at]) for at in order if moments[at] >= 0.0])
    ready = [bucket[-1][0] for bucket in made]
    buckets = [sum(each.numel() for _, each in bucket) for bucket in made]
    backward = ready[-1]
    return Workload(
        sum(buckets),
        backward,
        max(0.0, seconds - backward) + optimizer,
        buckets=buckets,
        ready=ready,
        tensors=sum(map(len, made)),
        shared=device.type == "cpu" if shared is None else _validate.boolean("shared", shared),
    )


class _Watch:
    """Notes when gradients are ready."""

    def __init__(self, model: torch.nn.Module, parameters: Sequence[torch.nn.Parameter]) -> None:
        self._model = model
        self._parameters = parameters
        self._device = parameters[0].device
        self._start: Any = None
        self._noted: dict[int, Any] = {}
        self._hooks = [model.register_forward_hook(self._begin)]
        self._hooks += [
            each.register_post_accumulate_grad_hook(self._note_of(at))  # type: ignore[no-untyped-call]
            for at, each in enumerate(parameters)
        ]

    def time(self, step: Callable[[], object]) -> list[float]:
        """Return the seconds of a step, then those from the forward pass to each gradient.

        A parameter without a gradient has a negative time.
        """
        for each in self._parameters:
            each.grad = None
        self._start, self._noted = None, {}
        uncoupled: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        if isinstance(self._model, DistributedDataParallel):
            dist.barrier(group=self._model.process_group)
            uncoupled = self._model.no_sync()
        begin = time.perf_counter()
        with uncoupled:
            step()
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        seconds = time.perf_counter() - begin
        if self._start is None:
            raise ValueError("step made no forward pass: call the model that is measured")
        if not self._noted:
            raise ValueError("step made no backward pass: call backward() on the output")
        return [seconds] + [
            self._between(self._noted[at]) if at in self._noted else -1.0
            for at in range(len(self._parameters))
        ]

    def close(self) -> None:
        """Remove the hooks."""
        for each in self._hooks:
            each.remove()

    def _begin(self, *_: object) -> None:
        self._start = self._now()

    def _note_of(self, at: int) -> Callable[[torch.Tensor], None]:
        def note(_: torch.Tensor) -> None:
            self._noted[at] = self._now()

        return note

    def _now(self) -> Any:
        if self._device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def _between(self, end: Any) -> float:
        if self._device.type != "cuda":
            return float(end - self._start)
        return float(self._start.elapsed_time(end)) / 1e3


_Ready = tuple[float, torch.nn.Parameter]


def _buckets(model: torch.nn.Module, ready: Sequence[_Ready]) -> list[list[_Ready]]:
    """Return the buckets that DDP makes of parameters in this order: one that is full ends."""
    limits = [_FIRST, _CAP]
    if isinstance(model, DistributedDataParallel):
        cap = int(model.bucket_bytes_cap)
        first = min(cap, _FIRST) if model.bucket_bytes_cap_default else cap
        limits = [*(getattr(model, "bucket_bytes_cap_list", None) or [first, cap])]
    made: list[list[_Ready]] = [[]]
    nbytes = 0
    for at, each in ready:
        if nbytes >= limits[min(len(made), len(limits)) - 1]:
            made.append([])
            nbytes = 0
        made[-1].append((at, each))
        nbytes += each.numel() * each.element_size()
    return made
