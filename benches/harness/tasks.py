"""Code that all tasks share.

The data needs no download: scikit-learn ships the handwritten digits, Python ships its own sources.
Both models have about half a million parameters, so that a gradient has about two megabytes: small
enough for two CPU cores, large enough to be slow to send.

A task fixes everything that the methods under comparison must share: initial weights and data
order. Another seed gives other weights and another order of the same data. Nothing here depends on
compression.
"""

import math
from typing import Any

from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn import functional

SEED = 20260101
Batch = tuple[Tensor, Tensor]


def share_of_rate(step: int, steps: int) -> float:
    """Return the learning rate of a step as a share of the highest.

    It warms up over a tenth of the steps, then decays along a cosine to a tenth.
    """
    warm = max(1, steps // 10)
    return min(1.0, (step + 1) / warm) * (0.55 + 0.45 * math.cos(math.pi * min(1.0, step / steps)))


def loss_sum(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor, int]:
    """Return the summed cross-entropy, the number of correct predictions, and their total."""
    inputs, targets = batch
    logits = model(inputs)
    logits = logits.reshape(-1, logits.shape[-1])
    targets = targets.reshape(-1)
    loss = functional.cross_entropy(logits, targets, reduction="sum")
    return loss, (logits.argmax(dim=-1) == targets).sum(), targets.numel()


def half_hook(group: Any, bucket: Any) -> Any:
    """Do what torch's ``bf16_compress_hook`` does.

    DDP knows that one by its name, and refuses it on builds without NCCL.
    """
    return default_hooks.bf16_compress_hook(group, bucket)


half_hook.__annotations__.clear()  # DDP insists that annotations, if there are any, are its own
