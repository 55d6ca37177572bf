"""One training run with ranks that are simulated in one process."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from benches.harness.tasks import share_of_rate
from gradwire import Codec, NonFiniteError

from .flat import Flat
from .rules import Rule
from .tasks.task import Task

EVALUATIONS = 6


class Method(Protocol):
    """What makes rules."""

    @property
    def codec(self) -> Codec | None:
        """The codec; None to send everything."""

    def rule(self, flat: Flat, ranks: int, steps: int) -> Rule:
        """Return the rule for a run of so many steps."""


@dataclass
class Curve:
    """What a run gave.

    Attributes
    ----------
    points : list of dict
        At each evaluation ``step`` and what the task measures on held-out data, such as ``loss``
        and ``accuracy``.
    bytes_per_step : float
        Bytes that a rank sends, on average.
    diverged : bool
        The run ended early, because a gradient or the loss was not finite.
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
    dense: Sequence[str] = (),
    tell: Callable[[int, dict[str, float]], Any] | None = None,
) -> Curve:
    """Train from scratch.

    Gradients of the ranks come from backward passes one after the other. Buffers, such as the
    statistics of BatchNorm, are those of rank 0, which DDP broadcasts before every forward pass.

    Parameters
    ----------
    task : Task
        Its batch over all ranks together is the same for any number of ranks.
    learning_rate : float
        The highest of a schedule with warm-up and cosine decay.
    seed : int
        Of the initial weights and the order of data.
    evaluations : int
        On held-out data, at equal distances; the last after the last step.
    dense : sequence of str
        Parameters to send dense whatever their size, by a part of their names.
    tell : callable, optional
        Called with the step and each point.
    """
    model = task.model(seed)
    flat = Flat(model, dense, codec=method.codec)
    rule = method.rule(flat, ranks, steps)
    batches = [task.batches(rank, ranks, seed) for rank in range(ranks)]
    pauses = {round(steps * (i + 1) / evaluations) for i in range(evaluations)}
    curve = Curve()
    sent = 0.0
    try:
        for step in range(steps):
            rule.begin(learning_rate * share_of_rate(step, steps))
            for rank in range(ranks):
                flat.gradients.zero_()
                task.loss(model, next(batches[rank])).backward()  # type: ignore[no-untyped-call]
                if rank == 0:
                    buffers = flat.buffers.clone()
                rule.take(rank, flat.gradients)
            flat.buffers.copy_(buffers)
            rule.end()
            sent += rule.nbytes
            curve.bytes_per_step = sent / (step + 1)
            if step + 1 in pauses:
                point = {"step": step + 1, **evaluate(task, model)}
                if not math.isfinite(point["loss"]):
                    curve.diverged = True
                    return curve
                curve.points.append(point)
                if tell is not None:
                    tell(step + 1, point)
    except NonFiniteError:
        curve.diverged = True
    return curve


def evaluate(task: Task, model: torch.nn.Module) -> dict[str, float]:
    """Return what the task measures on held-out data."""
    model.eval()
    with torch.no_grad():
        found = task.evaluate(model)
    model.train()
    return found
