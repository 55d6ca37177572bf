"""DiLoCo with ranks that are simulated in one process.

Codecs, limits of sizes, the outer step, fragments and their timetable are those of
`gradwire.torch.diloco`; a test compares the result with real processes, bit for bit.
"""

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from benches.accuracy.averaging import Compressed
from benches.accuracy.flat import Flat
from benches.accuracy.run import Curve, evaluate
from benches.accuracy.tasks.task import Task
from benches.harness.tasks import share_of_rate
from gradwire import NonFiniteError
from gradwire.torch.diloco.fragments import Timetable, divide
from gradwire.torch.diloco.outer import OuterOptimizer

from .settings import Setting

EVALUATIONS = 2
MEETING = 64
"""Bytes of the message to each other rank before an exchange."""


@dataclass
class Trained(Curve):
    """What a run gave.

    Attributes
    ----------
    largest_message : float
        Bytes that a rank sends at once, at most.
    """

    largest_message: float = 0.0


class Fragment:
    """Parameters that are exchanged together: those that ranks share, and each rank's own."""

    def __init__(self, flat: Flat, ranks: int, setting: Setting) -> None:
        self.flat = flat
        self.own = [nn.Parameter(flat.parameters.clone()) for _ in range(ranks)]
        self._shared = flat.parameters.clone()
        self._velocity = torch.zeros_like(self._shared) if setting.outer_momentum else None
        self._averaging = Compressed(flat, ranks, setting.codec)
        self._mean = torch.zeros_like(self._shared)
        self._sent: list[torch.Tensor | None] = [None] * ranks

    @torch.no_grad()
    def show(self, rank: int | None) -> None:
        """Put a rank's parameters into the model, or those that are shared."""
        self.flat.parameters.copy_(self._shared if rank is None else self.own[rank])

    @torch.no_grad()
    def send(self, outer: OuterOptimizer) -> float:
        """Average by what the ranks have moved; return the bytes that one of them sends."""
        for rank, own in enumerate(self.own):
            if outer.carry:
                self._sent[rank] = own.clone()
            self._averaging.take(rank, self._shared - own)
        self._averaging.average(self._mean)
        return self._averaging.nbytes + (len(self.own) - 1) * MEETING

    @torch.no_grad()
    def apply(self, outer: OuterOptimizer) -> None:
        """Make the outer step, and bring the ranks' own parameters to the result."""
        outer.step(self._shared, self._velocity, self._mean)
        for own, sent in zip(self.own, self._sent, strict=True):
            outer.place(own, self._shared, sent)


@dataclass
class Exchanges:
    """The exchanges of a run, in the order of `gradwire.torch.diloco.DiLoCo.step`."""

    fragments: list[Fragment]
    table: Timetable
    outer: OuterOptimizer
    sent: int = 0
    nbytes: float = 0.0
    largest: float = 0.0
    _flying: deque[int] = field(default_factory=deque)

    def step(self, now: int) -> None:
        """Apply and send what is due after so many inner steps."""
        while True:
            if self._flying and self.table.applied_at(self._flying[0]) <= now:
                self._fragment(self._flying.popleft()).apply(self.outer)
            elif self.table.sent_at(self.sent) <= now:
                nbytes = self._fragment(self.sent).send(self.outer)
                self.nbytes += nbytes
                self.largest = max(self.largest, nbytes)
                self._flying.append(self.sent)
                self.sent += 1
            else:
                return

    def _fragment(self, number: int) -> Fragment:
        return self.fragments[number % len(self.fragments)]


def train(task: Task, setting: Setting, *, ranks: int = 2, seed: int, steps: int) -> Trained:
    """Train from scratch; what is evaluated are the shared parameters.

    Raises
    ------
    ValueError
        The model has buffers, which would be each rank's own.
    """
    model = task.model(seed)
    if any(True for _ in model.buffers()):
        raise ValueError("a model with buffers: they are each rank's own, and not simulated")
    groups = divide(dict(model.named_parameters()), setting.fragments)
    fragments = [Fragment(Flat(model, only=names), ranks, setting) for names in groups]
    table = Timetable(setting.inner_steps, len(groups), setting.delay)
    outer = OuterOptimizer.given(
        setting.outer_lr, setting.outer_momentum, True, setting.mixing, setting.delay
    )
    outer.check(setting.codec)
    exchanges = Exchanges(fragments, table, outer)
    inner = [
        torch.optim.AdamW([each.own[rank] for each in fragments], fused=True, **setting.adamw())
        for rank in range(ranks)
    ]
    batches = [task.batches(rank, ranks, seed) for rank in range(ranks)]
    pauses = {round(steps * (i + 1) / EVALUATIONS) for i in range(EVALUATIONS)}
    found = Trained()
    try:
        for step in range(steps):
            for rank in range(ranks):
                for each in fragments:
                    each.show(rank)
                    each.flat.gradients.zero_()
                    each.own[rank].grad = each.flat.gradients
                task.loss(model, next(batches[rank])).backward()  # type: ignore[no-untyped-call]
                inner[rank].param_groups[0]["lr"] = setting.rate * share_of_rate(step, steps)
                inner[rank].step()
            exchanges.step(step + 1)
            found.bytes_per_step = exchanges.nbytes / (step + 1)
            found.largest_message = exchanges.largest
            if step + 1 in pauses:
                for each in fragments:
                    each.show(None)
                point: dict[str, Any] = {"step": step + 1, **evaluate(task, model)}
                if not math.isfinite(point["loss"]):
                    found.diverged = True
                    return found
                found.points.append(point)
    except NonFiniteError:
        found.diverged = True
    return found
