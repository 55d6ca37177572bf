"""What each method is trained with: the optimizer that suits its codec, without the learning rate.

A task names the optimizer that people would use without compression. A codec changes it only where
it has to, by the rules of the documentation ("Choosing a codec, a ratio and an optimizer").
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from benches.harness.tasks import share_of_rate
from gradwire.codec import Codec
from gradwire.memory import AdamCorrection, MomentumCorrection
from gradwire.torch import optim

__all__ = ["Recipe", "recipe_for", "scheduled"]


@dataclass(frozen=True)
class Recipe:
    """An optimizer and its options, but for the learning rate: "adamw" or "sgd".

    ``own``: of `gradwire.torch.optim` rather than of torch.
    """

    kind: str
    own: bool
    options: Mapping[str, Any]

    def build(
        self, parameters: Iterable[torch.nn.Parameter], learning_rate: float, steps: int
    ) -> tuple[torch.optim.Optimizer, LRScheduler]:
        """Return the optimizer and its schedule."""
        optimizer = self.optimizer(parameters, learning_rate)
        return optimizer, scheduled(optimizer, steps)

    def optimizer(
        self, parameters: Iterable[torch.nn.Parameter], learning_rate: float
    ) -> torch.optim.Optimizer:
        made: Any
        options = dict(self.options)
        if self.kind == "sgd":
            made = optim.SGD if self.own else torch.optim.SGD
        else:
            made = optim.AdamW if self.own else torch.optim.AdamW
            options["fused"] = True  # nobody who looks at the time of a step does without
        optimizer: torch.optim.Optimizer = made(parameters, lr=learning_rate, **options)
        return optimizer

    def __str__(self) -> str:
        own = "gradwire " if self.own else ""
        if self.kind == "sgd":
            return f"{own}SGD({self.options['momentum']:g})"
        # With gradwire's, parameters that are sent dense alone have a first moment.
        return f"{own}AdamW({', '.join(f'{beta:g}' for beta in self.options['betas'])})"


def scheduled(optimizer: torch.optim.Optimizer, steps: int) -> LRScheduler:
    """Return the schedule of the learning rate: warm-up, then cosine decay."""
    return LambdaLR(optimizer, lambda step: share_of_rate(step, steps))


def recipe_for(usual: str, codec: Codec | None) -> Recipe:
    """Return the optimizer that is recommended for a codec; None averages gradients.

    ``usual`` is what the task is trained with if nothing is compressed.
    """
    memory = None if codec is None else codec.memory
    if isinstance(memory, AdamCorrection):
        return Recipe("adamw", True, {"betas": (0.9, memory.beta2), "eps": memory.eps})
    if isinstance(memory, MomentumCorrection):
        options = {"momentum": memory.momentum, "nesterov": memory.nesterov}
        return Recipe("sgd", True, options)
    # Error feedback sends gradients late and as sums, which acts as momentum. A moment of the
    # optimizer would average these sums once more.
    feedback = memory is not None and memory.keeps
    if usual == "sgd":
        late = feedback and codec is not None and codec.sparsify.selects
        return Recipe("sgd", False, {"momentum": 0.0 if late else 0.9})
    # A first moment costs one bit per entry as much as a sparse codec: 2.32 instead of 2.16 on the
    # text after 300 steps, with `onebit` at a rate of 0.002.
    return Recipe("adamw", False, {"betas": (0.0 if feedback else 0.9, 0.999)})
