"""One training run with ranks that are simulated in one process."""

import math
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from benches.harness.tasks import share_of_rate
from gradwire import Codec, NonFiniteError
from gradwire.schedule import BySteps
from gradwire.torch.optim import adapt

from .averages import Dense, Exchanged, Flat
from .methods import ADAMW, Method

EVALUATIONS = 6
EPOCHS = 10
"""Epochs of a run, for schedules."""


class Task(Protocol):
    """Model and data for simulated ranks, whose batches are endless shares of a global batch.

    ``evaluate`` returns means over held-out data, ``loss`` among them; ``facts`` is for the record.
    """

    def model(self, seed: int) -> nn.Module: ...

    def batches(self, rank: int, ranks: int, seed: int) -> Any: ...

    def loss(self, model: nn.Module, batch: Any) -> Tensor: ...

    def evaluate(self, model: nn.Module) -> dict[str, float]: ...

    def facts(self) -> dict[str, object]: ...


class Stepper:
    """Average gradients, dense or with a codec, and give them to an optimizer.

    A codec that sends updates gets the learning rate before each step, as from
    `gradwire.torch.ddp.attach`. Its schedule changes it with the epochs of the run.
    """

    def __init__(self, flat: Flat, ranks: int, method: Method, steps: int) -> None:
        method = replace(method, codec=_among(ranks, method.codec))
        self._codec = method.codec
        self._exchanged = None if self._codec is None else Exchanged(flat, ranks, self._codec)
        self.averages = self._exchanged or Dense(flat, ranks)
        self._changes = _changes(method, steps)
        self._step = 0
        self._average = torch.zeros_like(flat.gradients)
        self._optimizers = _optimizers(method, flat, self._average)

    def begin(self, learning_rate: float) -> None:
        codec = self._changes.get(self._step, self._codec)
        self._step += 1
        for group in (group for each in self._optimizers for group in each.param_groups):
            group["lr"] = learning_rate * group["share"]
        if codec is None or self._exchanged is None:
            return
        if codec != self._codec:
            self._exchanged.change(codec)
            self._codec = codec
        if codec.memory.updates:
            self._exchanged.set_learning_rate(learning_rate)

    def end(self) -> None:
        self.averages.average(self._average)
        for optimizer in self._optimizers:
            optimizer.step()


def _among(ranks: int, codec: Codec | None) -> Codec | None:
    """Return a codec with the exchange that its default is among so many ranks."""
    if codec is None:
        return None
    parts = codec.sparsify, codec.quantize, codec.memory
    return codec.replace(exchange=codec.exchange.for_ranks(ranks, *parts))


def _changes(method: Method, steps: int) -> dict[int, Codec]:
    """Return the codecs of a schedule, by the steps from which they are used."""
    codec, schedule = method.codec, method.schedule
    if schedule is None:
        return {}
    assert codec is not None
    if isinstance(schedule, BySteps):
        begins = list(range(0, steps, schedule.steps))
    else:
        begins = [-(-epoch * steps // EPOCHS) for epoch in range(EPOCHS)]
    found = {}
    for epoch, step in enumerate(begins):
        changed = schedule.codec_at(codec, epoch)
        assert changed is not None  # dense epochs are not simulated
        found[step] = changed
    return found


def _optimizers(method: Method, flat: Flat, average: Tensor) -> list[torch.optim.Optimizer]:
    """Return the optimizers of the compressed and the dense parameters, which are their own.

    Where the codec has computed steps or a momentum, they apply it to the first. Muon has each
    matrix by itself, and AdamW the rest at a tenth of the rate.
    """
    memory = None if method.codec is None else method.codec.memory
    computed = memory is not None and (memory.corrects or memory.updates)

    def group(begin: int, end: int, *shape: int) -> dict[str, Any]:
        part = nn.Parameter(flat.parameters[begin:end].view(shape))
        part.grad = average[begin:end].view(shape)
        return {"params": [part], "corrected": computed and begin < flat.cut, "share": 1.0}

    rest = group(flat.cut, flat.parameters.numel(), -1)
    if method.optimizer == "muon":
        matrices = [group(each.start, each.stop, *each.shape) for each in flat.pieces]
        muon = adapt(torch.optim.Muon(matrices, lr=0.0, **method.options))
        return [muon, torch.optim.AdamW([rest | {"share": 0.1}], lr=0.0, fused=True, **ADAMW)]
    groups = [group(0, flat.cut, -1), rest]
    if method.optimizer == "sgd":
        return [adapt(torch.optim.SGD(groups, lr=0.0, **method.options))]
    return [adapt(torch.optim.AdamW(groups, lr=0.0, fused=True, **method.options))]


@dataclass
class Curve:
    """What a run gave: its evaluations, bytes that a rank sends a step, and whether it diverged.

    Each point has ``step`` and what the task measures on held-out data, such as ``loss``.
    """

    points: list[dict[str, float]] = field(default_factory=list)
    bytes_per_step: float = 0.0
    diverged: bool = False


def run(
    task: Task,
    method: Method,
    learning_rate: float,
    *,
    ranks: int = 2,
    seed: int = 0,
    steps: int,
    evaluations: int = EVALUATIONS,
) -> Curve:
    """Train from scratch.

    Gradients of the ranks come from backward passes one after the other. Buffers, such as the
    statistics of BatchNorm, are those of rank 0, which DDP broadcasts before every forward pass.
    The global batch is the same for any number of ranks. The learning rate is the highest of a
    schedule with warm-up and cosine decay, and evaluations are at equal distances, the last at the
    end.
    """
    model = task.model(seed)
    flat = Flat(model, hidden=method.optimizer == "muon")
    stepper = Stepper(flat, ranks, method, steps)
    batches = [task.batches(rank, ranks, seed) for rank in range(ranks)]
    pauses = {round(steps * (i + 1) / evaluations) for i in range(evaluations)}
    curve = Curve()
    sent = 0.0
    try:
        for step in range(steps):
            stepper.begin(learning_rate * share_of_rate(step, steps))
            for rank in range(ranks):
                flat.gradients.zero_()
                task.loss(model, next(batches[rank])).backward()  # type: ignore[no-untyped-call]
                if rank == 0:
                    buffers = flat.buffers.clone()
                stepper.averages.take(rank, flat.gradients)
            flat.buffers.copy_(buffers)
            stepper.end()
            sent += stepper.averages.nbytes
            curve.bytes_per_step = sent / (step + 1)
            if step + 1 in pauses:
                point = {"step": step + 1, **evaluate(task, model)}
                if not math.isfinite(point["loss"]):
                    curve.diverged = True
                    return curve
                curve.points.append(point)
    except NonFiniteError:
        curve.diverged = True
    return curve


def evaluate(task: Task, model: nn.Module) -> dict[str, float]:
    model.eval()
    with torch.no_grad():
        found = task.evaluate(model)
    model.train()
    return found
