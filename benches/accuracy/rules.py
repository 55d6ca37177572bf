"""How a method makes a step out of the gradients of all ranks."""

from typing import Any, Protocol, Self

import torch
from torch import Tensor, nn

from gradwire import Codec
from gradwire.exchange import AllGather
from gradwire.schedule import BySteps, Schedule
from gradwire.torch.engine.metrics import Outcomes
from gradwire.torch.optim import SGD, AdamW

from .averaging import Averaging, Compressed, Dense, Encoding
from .exchanged import Exchanged
from .flat import Flat

Options = dict[str, Any]

EPOCHS = 10
"""Epochs of a run, for schedules."""


class Rule(Protocol):
    """What a run asks of a method. Ranks are simulated one after the other.

    Attributes
    ----------
    nbytes : float
        Bytes that a rank sent in the last step.
    """

    nbytes: float

    def begin(self, learning_rate: float) -> None:
        """Begin a step."""

    def take(self, rank: int, gradients: Tensor) -> None:
        """Take the gradients of a rank, which the rule may overwrite."""

    def end(self) -> None:
        """Update the parameters."""


class ByOptimizer:
    """Average gradients, dense or with a codec, and give them to an optimizer.

    A codec that corrects momentum or sends updates gets the optimizer of `gradwire.torch.optim`,
    and the learning rate before each step, as from `gradwire.torch.ddp.attach`.
    """

    def __init__(
        self, flat: Flat, ranks: int, codec: Codec | None, optimizer: str, options: Options
    ) -> None:
        memory = None if codec is None else codec.memory
        self._sends_updates = memory is not None and memory.updates
        computed = memory is not None and (memory.corrects or memory.updates)
        self._codec = codec
        self._encoding = None if codec is None else encoding(flat, ranks, codec)
        self._averaging: Averaging = self._encoding or Dense(flat, ranks)
        self._changes: dict[int, Codec] = {}
        self._step = 0
        self._average = torch.zeros_like(flat.gradients)
        groups = parts(flat, self._average)
        self._optimizer = _made(optimizer, options, groups, computed=computed)
        self.nbytes = 0.0

    def scheduled(self, schedule: Schedule, steps: int) -> Self:
        """Change the codec with the epochs of a run of so many steps, and return this rule."""
        assert self._codec is not None
        if isinstance(schedule, BySteps):
            begins = list(range(0, steps, schedule.steps))
        else:
            begins = [-(-epoch * steps // EPOCHS) for epoch in range(EPOCHS)]
        for epoch, step in enumerate(begins):
            codec = schedule.codec_at(self._codec, epoch)
            assert codec is not None  # dense epochs are not simulated
            self._changes[step] = codec
        return self

    def begin(self, learning_rate: float) -> None:
        """Begin a step."""
        codec = self._changes.get(self._step)
        if codec is not None and codec != self._codec:
            assert self._encoding is not None
            self._encoding.change(codec)
            self._codec = codec
        self._step += 1
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        if self._sends_updates:
            assert self._encoding is not None
            for states in self._encoding.states:
                for state in states:
                    state.learning_rate = learning_rate

    @property
    def encoded(self) -> Outcomes:
        """What the last encode of a rank gave, of a codec whose frames are gathered."""
        assert isinstance(self._encoding, Compressed)
        return self._encoding.encoded

    def take(self, rank: int, gradients: Tensor) -> None:
        """Take the gradients of a rank."""
        self._averaging.take(rank, gradients)

    def end(self) -> None:
        """Update the parameters."""
        self._averaging.average(self._average)
        self._optimizer.step()
        self.nbytes = self._averaging.nbytes


def encoding(flat: Flat, ranks: int, codec: Codec) -> Encoding:
    """Return what averages with a codec: for an all-gather in the fastest way."""
    if isinstance(codec.exchange, AllGather):
        return Compressed(flat, ranks, codec)
    return Exchanged(flat, ranks, codec)


def _made(
    name: str, options: Options, groups: list[nn.Parameter], *, computed: bool
) -> torch.optim.Optimizer:
    """Return an optimizer; if the codec has computed steps, for the first group it applies them."""
    if not computed:
        if name == "sgd":
            return torch.optim.SGD(groups, lr=0.0, **options)
        return torch.optim.AdamW(groups, lr=0.0, fused=True, **options)
    compressed, dense = groups
    divided: list[dict[str, Any]] = [
        {"params": [compressed], "corrected": True},
        {"params": [dense]},
    ]
    if name == "sgd":
        return SGD(divided, lr=0.0, **options)
    return AdamW(divided, lr=0.0, fused=True, **options)


def parts(flat: Flat, average: Tensor) -> list[nn.Parameter]:
    """Return the compressed and the dense parameters as two, whose gradient is the average."""
    found = []
    for begin, end in ((0, flat.cut), (flat.cut, flat.parameters.numel())):
        part = nn.Parameter(flat.parameters[begin:end])
        part.grad = average[begin:end]
        found.append(part)
    return found
