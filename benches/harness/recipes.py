"""What each method is trained with: the optimizer that suits its codec, and the learning rate.

A task names the optimizer that people would use without compression. A codec changes it only where
it has to, by the rules of the documentation ("Choosing a codec, a ratio and an optimizer").
The learning rates in ``rates.json`` were measured at commit 5ed8a39, each as the best of one grid
for all; a codec that is not among them gets the rate of the same preset with other options, or of
another codec with the same optimizer.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from benches.harness.tasks import share_of_rate
from gradwire._codec import Codec
from gradwire.memory import AdamCorrection, MomentumCorrection
from gradwire.quantize import Lossless


@dataclass(frozen=True)
class Recipe:
    """An optimizer of torch and its options, but for the learning rate: "adamw" or "sgd"."""

    kind: str
    options: Mapping[str, Any]

    def optimizer(
        self, parameters: Iterable[torch.nn.Parameter], learning_rate: float
    ) -> torch.optim.Optimizer:
        if self.kind == "sgd":
            return torch.optim.SGD(parameters, lr=learning_rate, **self.options)
        # Nobody who looks at the time of a step does without the fused kernel.
        return torch.optim.AdamW(parameters, lr=learning_rate, fused=True, **self.options)

    def __str__(self) -> str:
        if self.kind == "sgd":
            return f"SGD({self.options['momentum']:g})"
        return f"AdamW({', '.join(f'{beta:g}' for beta in self.options['betas'])})"


def scheduled(optimizer: torch.optim.Optimizer, steps: int) -> LRScheduler:
    return LambdaLR(optimizer, lambda step: share_of_rate(step, steps))


def recipe_for(usual: str, codec: Codec | None) -> Recipe:
    """Return the optimizer that is recommended for a codec; None averages gradients.

    ``usual`` is what the task is trained with if nothing is compressed.
    """
    memory = None if codec is None else codec.memory.for_optimizer({})
    if isinstance(memory, AdamCorrection):
        return Recipe("adamw", {"betas": (0.9, memory.beta2), "eps": memory.eps})
    if isinstance(memory, MomentumCorrection):
        return Recipe("sgd", {"momentum": memory.momentum, "nesterov": memory.nesterov})
    # Error feedback sends gradients late and as sums, which acts as momentum. A moment of the
    # optimizer would average these sums once more.
    feedback = memory is not None and memory.keeps
    if usual == "sgd":
        late = feedback and codec is not None and codec.sparsify.selects
        return Recipe("sgd", {"momentum": 0.0 if late else 0.9})
    # A first moment costs one bit per entry as much as a sparse codec: 2.32 instead of 2.16 on the
    # text after 300 steps, with `onebit` at a rate of 0.002.
    return Recipe("adamw", {"betas": (0.0 if feedback else 0.9, 0.999)})


FILE = Path(__file__).with_name("rates.json")

USUAL = {"AdamW(": 0.002, "SGD(0)": 0.512, "SGD(": 0.128}
"""Rates by family of optimizer, where nothing was measured."""


@dataclass(frozen=True)
class Rate:
    """A learning rate, and where it comes from; empty if it was measured with the method itself."""

    value: float
    source: str = ""


def family(optimizer: str) -> str:
    """Return the family of an optimizer in words. Without momentum, steps of SGD are shorter."""
    return next(name for name in USUAL if name in optimizer)


@cache
def measured_rates() -> dict[str, Any]:
    return dict(json.loads(FILE.read_text("utf-8")))


def config_of(codec: Codec) -> dict[str, Any]:
    """Return what determines training with a codec: ranks gather here, at usual options.

    Values that are sent without loss are those of their float.
    """
    exchange = codec.exchange.for_ranks(1, codec.sparsify, codec.quantize, codec.memory)
    quantize = codec.quantize
    quantize = quantize.plain if isinstance(quantize, Lossless) else quantize
    memory = codec.memory.for_optimizer({})
    return codec.replace(exchange=exchange, memory=memory, quantize=quantize).get_config()


def current(config: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the config of a record as of now: options that are newer have their defaults."""
    return None if config is None else config_of(Codec.from_config(config))


def rate_for(task: str, method: str, codec: Codec | None, optimizer: str) -> Rate:
    """Return the learning rate for a method: a preset, or one of torch without a codec.

    Rates of another family of optimizers mean nothing.
    """
    config = None if codec is None else config_of(codec)
    known = [
        each
        for each in measured_rates()["tasks"].get(task, [])
        if each["learning_rate"] is not None and family(each["optimizer"]) == family(optimizer)
    ]
    if codec is not None and codec.memory.updates:  # its steps are as long as without compression
        known = [each for each in known if each["codec"] is None] or known
    if not known:
        return Rate(USUAL[family(optimizer)], "not measured")

    def unlike(entry: dict[str, Any]) -> tuple[bool, ...]:
        # Optimizers that applied what codecs compute were gradwire's.
        other = (
            entry["optimizer"].removeprefix("gradwire "),
            entry["method"],
            current(entry["codec"]),
        )
        return tuple(x != y for x, y in zip(other, (optimizer, method, config), strict=True))

    best = min(known, key=unlike)
    return Rate(best["learning_rate"], f"that of {best['call']}" if any(unlike(best)) else "")
